// The passes of a selection over scores, for each instruction set.
#pragma once

#if defined(__x86_64__) && !defined(KVPOLICY_COMPILED)
#include <immintrin.h>
#endif

#include <bit>
#include <cstring>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/packed_bits.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <kvpolicy/ops/radix_key.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The score of a key, which must not be that of a NaN.
[[nodiscard]] inline float score_of_key(std::uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

/// A cut of keys: it keeps those above `lowest`, and the first `ties` of those equal to it.
struct cut {
  std::uint32_t lowest = 0;
  std::int64_t ties = 0;
};

/// How far ahead a pass prefetches scores from memory: one memory page, because hardware prefetchers stop at its end.
inline constexpr int floats_ahead = 1024;

/// How far ahead a pass prefetches the memory to which it writes.
inline constexpr int ordinals_ahead = 256;

/// How many scores are above and inside of a bracket, and how many are NaN.
struct bracket_counts {
  int above = 0;
  int inside = 0;
  int nan = 0;
};

/// Keys of a sample of scores, which is evenly spaced in pieces of a few neighbours.
struct sample_keys {
  static constexpr int size = 1024;
  static constexpr int piece = 8;
  std::uint32_t keys[size];
  std::uint32_t low = forced_key;
  std::uint32_t high = below_all_keys;
};

#if !defined(KVPOLICY_COMPILED)
/// Takes a sample of `count` >= size scores. All pieces are prefetched first.
template <int Width>
[[gnu::always_inline]] inline void take_sample(float const* scores, int count, sample_keys& to) {
  using ints = typename vector_of<Width>::ints;
  using words = typename vector_of<Width>::words;
  std::int64_t const gap = (static_cast<std::int64_t>(count) - sample_keys::piece) * sample_keys::piece;
  constexpr std::int64_t gaps = sample_keys::size - sample_keys::piece;
  for (int i = 0; i < sample_keys::size / sample_keys::piece; ++i) __builtin_prefetch(scores + i * gap / gaps);
  words low = words{} + forced_key;
  words high = words{} + below_all_keys;
  for (int i = 0; i < sample_keys::size; i += Width) {
    words bits;
    get(bits, scores + i / sample_keys::piece * gap / gaps + i % sample_keys::piece);
    words key = bits ^ (__builtin_bit_cast(words, __builtin_bit_cast(ints, bits) >> 31) | 0x80000000u);
    key = key == 0x7FFFFFFFu ? key + 1u : key;
    key = (bits & 0x7FFFFFFFu) > 0x7F800000u ? words{} + nan_key : key;
    low = key < low ? key : low;
    high = key > high ? key : high;
    put(key, to.keys + i);
  }
  for (int i = 0; i < Width; ++i) {
    to.low = low[i] < to.low ? low[i] : to.low;
    to.high = high[i] > to.high ? high[i] : to.high;
  }
}

#endif

/// The scores that a pass lists: those above `lowest`, and the first `ties` equal to it. They are at most `most`.
struct listed_scores {
  float lowest;
  int ties;
  int most;
};

/// The passes over all scores. `low <= high`, and neither is NaN.
struct select_kernels {
  /// Counts the scores above `high` and the NaNs, and copies the bits of scores in [low, high] to `inside`. That array
  /// has `count` elements, and may be the memory of the scores. If low == high, these scores are only counted.
  bracket_counts (*bracket)(float const* scores, int count, float low, float high, std::uint32_t* inside);
  /// Writes, in ascending order, the ordinals `first` + e of these scores, and returns their number. Nothing is written
  /// behind `to[which.most]`. Meanwhile it prefetches `ahead`.
  int (*emit)(float const* scores, int count, int first, listed_scores which, int* to, row_ahead& ahead);
  void (*sample)(float const* scores, int count, sample_keys& to);
};

#if defined(KVPOLICY_COMPILED)
struct portable_select {
  static int emit_keys(float const* scores, int count, int first, cut at, int* to);
};
[[nodiscard]] select_kernels const& select_for(isa simd_level);
#else
struct portable_select {
  static bracket_counts bracket(float const* scores, int count, float low, float high, std::uint32_t* inside) {
    bracket_counts found;
    std::uint32_t const from = radix_key(low);
    std::uint32_t const to = radix_key(high);
    bool const one = from == to;
    for (int e = 0; e < count; ++e) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, scores + e, sizeof bits);
      std::uint32_t const key = radix_key(std::bit_cast<float>(bits));
      found.above += key > to ? 1 : 0;
      found.nan += key == nan_key ? 1 : 0;
      if (!one) inside[found.inside] = bits;
      found.inside += key - from <= to - from ? 1 : 0;
    }
    return found;
  }

  static int emit(float const* scores, int count, int first, listed_scores which, int* to, row_ahead&) {
    return emit_keys(scores, count, first, {radix_key(which.lowest), which.ties}, to);
  }

  /// Like `emit`, but the cut may be NaN.
  static int emit_keys(float const* scores, int count, int first, cut at, int* to) {
    int kept = 0;
    for (int e = 0; e < count; ++e) {
      std::uint32_t const key = radix_key(scores[e]);
      bool const tied = key == at.lowest && at.ties > 0;
      at.ties -= tied ? 1 : 0;
      if (key > at.lowest || tied) to[kept++] = first + e;
    }
    return kept;
  }

  static void sample(float const* scores, int count, sample_keys& to) { take_sample<4>(scores, count, to); }

  static constexpr select_kernels kernels{bracket, emit, sample};
};

#if defined(__x86_64__)

/// Returns the lowest `ties` of the set bits, and reduces `ties` by their number.
[[nodiscard]] [[gnu::always_inline]] inline unsigned take_ties(unsigned equal, int& ties) {
  int const there = __builtin_popcount(equal);
  if (there <= ties) {
    ties -= there;
    return equal;
  }
  unsigned some = 0;
  for (; ties > 0; --ties, equal &= equal - 1) some |= equal & (0u - equal);
  return some;
}

/// Eight scores at a time. Selected scores are packed by a permutation from a table.
struct avx2_select {
  [[gnu::target(KVPOLICY_AVX2)]] static unsigned bits_of(__m256 mask) {
    return static_cast<unsigned>(_mm256_movemask_ps(mask));
  }

  [[gnu::target(KVPOLICY_AVX2)]] static bracket_counts bracket(float const* scores, int count, float low, float high,
                                                               std::uint32_t* inside) {
    bracket_counts found;
    __m256 const from = _mm256_set1_ps(low);
    __m256 const to = _mm256_set1_ps(high);
    bool const one = low == high;
    int e = 0;
    for (; e + 8 <= count; e += 8) {
      __builtin_prefetch(scores + e + floats_ahead, 0, 2);
      __m256 const some = _mm256_loadu_ps(scores + e);
      unsigned const above = bits_of(_mm256_cmp_ps(some, to, _CMP_GT_OQ));
      unsigned const within = bits_of(_mm256_cmp_ps(some, from, _CMP_GE_OQ)) & ~above;
      if (!one) put_selected(_mm256_castps_si256(some), within, inside + found.inside);
      found.above += __builtin_popcount(above);
      found.inside += __builtin_popcount(within);
      found.nan += __builtin_popcount(bits_of(_mm256_cmp_ps(some, some, _CMP_UNORD_Q)));
    }
    bracket_counts const rest =
        portable_select::bracket(scores + e, count - e, low, high, one ? inside : inside + found.inside);
    return {found.above + rest.above, found.inside + rest.inside, found.nan + rest.nan};
  }

  [[gnu::target(KVPOLICY_AVX2)]] static int emit(float const* scores, int count, int first, listed_scores which,
                                                 int* to, row_ahead& ahead) {
    __m256 const cut = _mm256_set1_ps(which.lowest);
    __m256i ordinal = _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
    int kept = 0;
    int e = 0;
    for (; e + 8 <= count; e += 8) {
      __builtin_prefetch(to + kept + ordinals_ahead, 1);
      ahead.fetch();
      __m256 const some = _mm256_loadu_ps(scores + e);
      unsigned const equal = take_ties(bits_of(_mm256_cmp_ps(some, cut, _CMP_EQ_OQ)), which.ties);
      unsigned const stays = bits_of(_mm256_cmp_ps(some, cut, _CMP_GT_OQ)) | equal;
      int const more = __builtin_popcount(stays);
      put_selected(ordinal, stays, more, kept + 8 <= which.most, to + kept);
      kept += more;
      ordinal = _mm256_add_epi32(ordinal, _mm256_set1_epi32(8));
    }
    return kept + portable_select::emit(scores + e, count - e, first + e, which, to + kept, ahead);
  }

  [[gnu::target(KVPOLICY_AVX2)]] static void sample(float const* scores, int count, sample_keys& to) {
    take_sample<8>(scores, count, to);
  }

  static constexpr select_kernels kernels{bracket, emit, sample};
};

/// Sixteen scores at a time. Selected scores are packed in a register, because compressing stores are slow.
struct avx512_select {
  [[gnu::target(KVPOLICY_AVX512)]] static bracket_counts bracket(float const* scores, int count, float low, float high,
                                                                 std::uint32_t* inside) {
    bracket_counts found;
    __m512 const from = _mm512_set1_ps(low);
    __m512 const to = _mm512_set1_ps(high);
    bool const one = low == high;
    int e = 0;
    for (; e + 16 <= count; e += 16) {
      __builtin_prefetch(scores + e + floats_ahead, 0, 2);
      __m512 const some = _mm512_loadu_ps(scores + e);
      __mmask16 const above = _mm512_cmp_ps_mask(some, to, _CMP_GT_OQ);
      __mmask16 const within = _mm512_cmp_ps_mask(some, from, _CMP_GE_OQ) & static_cast<__mmask16>(~above);
      __mmask16 const nan = _mm512_cmp_ps_mask(some, some, _CMP_UNORD_Q);
      if (!one) {
        _mm512_storeu_si512(inside + found.inside, _mm512_castps_si512(_mm512_maskz_compress_ps(within, some)));
      }
      found.above += __builtin_popcount(above);
      found.inside += __builtin_popcount(within);
      found.nan += __builtin_popcount(nan);
    }
    bracket_counts const rest =
        portable_select::bracket(scores + e, count - e, low, high, one ? inside : inside + found.inside);
    return {found.above + rest.above, found.inside + rest.inside, found.nan + rest.nan};
  }

  [[gnu::target(KVPOLICY_AVX512)]] static int emit(float const* scores, int count, int first, listed_scores which,
                                                   int* to, row_ahead& ahead) {
    __m512 const cut = _mm512_set1_ps(which.lowest);
    __m512i ordinal = _mm512_add_epi32(_mm512_set1_epi32(first),
                                       _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    int kept = 0;
    int e = 0;
    for (; e + 16 <= count; e += 16) {
      __builtin_prefetch(to + kept + ordinals_ahead, 1);
      ahead.fetch();
      __m512 const some = _mm512_loadu_ps(scores + e);
      unsigned const equal = take_ties(_mm512_cmp_ps_mask(some, cut, _CMP_EQ_OQ), which.ties);
      auto const stays = static_cast<__mmask16>(_mm512_cmp_ps_mask(some, cut, _CMP_GT_OQ) | equal);
      int const more = __builtin_popcount(stays);
      __m512i const some_kept = _mm512_maskz_compress_epi32(stays, ordinal);
      if (kept + 16 <= which.most) {
        _mm512_storeu_si512(to + kept, some_kept);
      } else {
        _mm512_mask_storeu_epi32(to + kept, static_cast<__mmask16>((1u << more) - 1), some_kept);
      }
      kept += more;
      ordinal = _mm512_add_epi32(ordinal, _mm512_set1_epi32(16));
    }
    return kept + portable_select::emit(scores + e, count - e, first + e, which, to + kept, ahead);
  }

  static constexpr select_kernels kernels{bracket, emit, avx2_select::sample};
};

#endif

[[nodiscard]] inline select_kernels const& select_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_select::kernels;
  if (simd_level == isa::avx2) return avx2_select::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_select::kernels;
}

#endif

}  // namespace KVPOLICY_NAMESPACE::detail
