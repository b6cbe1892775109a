// Finds the lowest of some scores with AVX2, if it is the only one.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstdint>
#include <kvpolicy/ops/host/vectors.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int avx2_block = 128;               ///< scores whose lowest ones are compared with those before
inline constexpr int avx2_chapter = 8 * avx2_block;  ///< scores that a source of scores keeps

/// Fetches the block that is read 2 KiB later. Behind a short row the row of the next lane begins.
template <class Number>
[[gnu::always_inline]] inline void fetch_avx2_block(Number const* from) {
  for (int i = 0; i < avx2_block; i += 16) __builtin_prefetch(from + 512 + i, 0, 3);
}

/// Scores in memory: a source of scores for `avx2_lowest`.
struct row_of_scores {
  float const* scores;

  [[gnu::target("avx2"), gnu::always_inline]] inline float const* of(int e, int count) const {
    if (count == avx2_block) fetch_avx2_block(scores + e);
    return scores + e;
  }
  [[gnu::target("avx2"), gnu::always_inline]] inline float const* again(int e) const { return scores + e; }
  /// The number of scores before those that begin at a multiple of 32 bytes.
  [[gnu::target("avx2"), gnu::always_inline]] inline int before_aligned() const {
    auto const past = static_cast<int>(reinterpret_cast<std::uintptr_t>(scores) / sizeof(float) % 8);
    return past > 0 ? 8 - past : 0;
  }
};

/// The lowest scores of blocks are kept, and only the block that has the lowest of them is searched for the entry.
/// `Source` gives the scores of `count` entries from e on by `of(e, count)`. Until those of the next chapter are asked
/// for, `again(e)` gives them again. Blocks begin after the `before_aligned()` first scores.
template <class Source>
struct avx2_lowest {
  static constexpr int block = avx2_block;
  static constexpr int blocks = avx2_chapter / avx2_block;
  static constexpr float nothing = std::numeric_limits<float>::infinity();

  float score;  ///< the lowest one so far
  int index;    ///< its entry, unless `many` entries may have it
  bool many;
  __m256 nan;  ///< not 0 where a score was NaN

  /// The index of the lowest of `count` scores, or -1 if several may be the lowest, or one NaN.
  [[gnu::target("avx2"), gnu::always_inline]] static inline int only(Source const& source, int count) {
    avx2_lowest found;
    found.score = nothing;
    found.index = -1;
    found.many = false;
    found.nan = _mm256_setzero_ps();
    int e = source.before_aligned() < count ? source.before_aligned() : count;
    if (e > 0) found.note_rest(source.of(0, e), 0, e);
    for (; e + avx2_chapter <= count; e += avx2_chapter) found.note(source, e, blocks);
    int const some = (count - e) / block;
    if (some > 0) found.note(source, e, some);
    e += some * block;
    if (e < count) found.note_rest(source.of(e, count - e), e, count - e);
    return found.many || _mm256_movemask_ps(found.nan) != 0 ? -1 : found.index;
  }

 private:
  static constexpr int several = -2;

  /// Compares the scores of some blocks, from entry `begin` on, with those before.
  [[gnu::target("avx2"), gnu::always_inline]] inline void note(Source const& source, int begin, int some) {
    alignas(32) float lows[blocks * 8];
    __m256 low = _mm256_set1_ps(nothing);
    for (int b = 0; b < some; ++b) {
      __m256 const here = lowest_of(source.of(begin + b * block, block));
      _mm256_store_ps(lows + 8 * b, here);
      low = _mm256_min_ps(low, here);
    }
    low = spread_least(low);
    float const least = _mm256_cvtss_f32(low);
    if (least > score) return;
    many = least == score;
    score = least;
    for (int b = some; b < blocks; ++b) _mm256_store_ps(lows + 8 * b, _mm256_set1_ps(nothing));
    int const column = only_equal(lows, low);
    if (many || column < 0 || column / 8 >= some) {
      many = true;
      return;
    }
    int const of = begin + column / 8 * block;
    int const first = only_equal(source.again(of), low);
    int const second = only_equal(source.again(of) + block / 2, low);
    many = (first == -1) == (second == -1) || first == several || second == several;
    index = of + (first >= 0 ? first : block / 2 + second);
  }

  /// Compares `count` scores, fewer than a block, which are those from entry `begin` on, with those before.
  [[gnu::target("avx2"), gnu::always_inline]] inline void note_rest(float const* scores, int begin, int count) {
    __m256 low = _mm256_set1_ps(nothing);
    int e = 0;
    for (; e + 8 <= count; e += 8) {
      __m256 const some = _mm256_loadu_ps(scores + e);
      nan = _mm256_or_ps(nan, _mm256_cmp_ps(some, some, _CMP_UNORD_Q));
      low = _mm256_min_ps(some, low);
    }
    float least = _mm256_cvtss_f32(spread_least(low));
    for (; e < count; ++e) {
      if (scores[e] != scores[e]) nan = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
      least = scores[e] < least ? scores[e] : least;
    }
    if (least > score) return;
    for (e = 0; e < count; ++e) {
      if (scores[e] > least || scores[e] != scores[e]) continue;
      many = scores[e] == score;
      score = scores[e];
      index = begin + e;
    }
  }

  /// The lowest of each sixteen scores of a block that are eight entries apart.
  [[gnu::target("avx2"), gnu::always_inline]] inline __m256 lowest_of(float const* scores) {
    __m256 least[4];
    for (int i = 0; i < 4; ++i) {
      __m256 four[4];
      for (int v = 0; v < 4; ++v) get_once(four[v], scores + 32 * i + 8 * v);
      nan = _mm256_or_ps(nan, _mm256_or_ps(_mm256_cmp_ps(four[0], four[1], _CMP_UNORD_Q),
                                           _mm256_cmp_ps(four[2], four[3], _CMP_UNORD_Q)));
      least[i] = _mm256_min_ps(_mm256_min_ps(four[0], four[1]), _mm256_min_ps(four[2], four[3]));
    }
    return _mm256_min_ps(_mm256_min_ps(least[0], least[1]), _mm256_min_ps(least[2], least[3]));
  }

  /// The least of eight numbers, eight times.
  [[gnu::target("avx2"), gnu::always_inline]] static inline __m256 spread_least(__m256 const& of) {
    __m256 const four = _mm256_min_ps(of, _mm256_permute2f128_ps(of, of, 1));
    __m256 const two = _mm256_min_ps(four, _mm256_shuffle_ps(four, four, 0x4E));
    return _mm256_min_ps(two, _mm256_shuffle_ps(two, two, 0xB1));
  }

  /// The index of the one of 64 numbers that is `value`; -1 if there is none, and `several` if there are more.
  [[gnu::target("avx2"), gnu::always_inline]] static inline int only_equal(float const* numbers, __m256 const& value) {
    std::uint64_t const low = equal_of(numbers, value);
    std::uint64_t const high = equal_of(numbers + 32, value);
    std::uint64_t const all = low | high << 32;
    if (all == 0) return -1;
    if ((all & (all - 1)) != 0) return several;
    int const bit = __builtin_ctzll(all);
    return bit / 32 * 32 + bit % 16 / 4 * 8 + bit / 16 % 2 * 4 + bit % 4;
  }

  /// A bit for each of 32 numbers that is `value`, in the order of 128-bit packing: four numbers of each of four
  /// vectors, and then the other four of each.
  [[gnu::target("avx2"), gnu::always_inline]] static inline std::uint32_t equal_of(float const* numbers,
                                                                                   __m256 const& value) {
    __m256i same[4];
    for (int v = 0; v < 4; ++v) {
      same[v] = _mm256_castps_si256(_mm256_cmp_ps(_mm256_loadu_ps(numbers + 8 * v), value, _CMP_EQ_OQ));
    }
    __m256i const packed =
        _mm256_packs_epi16(_mm256_packs_epi32(same[0], same[1]), _mm256_packs_epi32(same[2], same[3]));
    return static_cast<std::uint32_t>(_mm256_movemask_epi8(packed));
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail

#endif
