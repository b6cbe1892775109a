// Finds the lowest score of a row, for each instruction set.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <kvpolicy/ops/host/argmin_bodies.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/lowest_avx2.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// - `last_lowest` returns the index of the lowest of `count` >= 1 scores, and the last one of equal scores; NaN is
///   below every number.
/// - `lowest_of` does so among the entries whose positions are in a range, and returns the one of the highest position
///   of those with equal scores; -1 if there is none.
/// - `count_from` returns the number of positions that are `limit` or higher.
struct argmin_kernels {
  int (*last_lowest)(float const* scores, int count, std::int64_t* nan) = nullptr;
  int (*lowest_of)(float const* scores, int const* position, int count, position_range among,
                   std::int64_t* nan) = nullptr;
  int (*count_from)(int const* position, int count, int limit) = nullptr;
};

#if defined(KVPOLICY_COMPILED)
[[nodiscard]] argmin_kernels const& argmin_for(isa simd_level);
#else
/// Code for any compiler and processor.
struct portable_argmin {
  static int last_lowest(float const* scores, int count, std::int64_t* nan) {
    return argmin_bodies<4>::last_lowest(scores, count, nan);
  }
  static int lowest_of(float const* scores, int const* position, int count, position_range among, std::int64_t* nan) {
    return argmin_bodies<4>::lowest_of(scores, position, count, among, nan);
  }
  static int count_from(int const* position, int count, int limit) {
    return argmin_bodies<4>::count_from(position, count, limit);
  }
  static constexpr argmin_kernels kernels{last_lowest, lowest_of, count_from};
};

#if defined(__x86_64__)

struct avx2_argmin {
  [[gnu::target(KVPOLICY_AVX2)]] static int last_lowest(float const* scores, int count, std::int64_t* nan) {
    int const only = avx2_lowest<row_of_scores>::only({scores}, count);
    return only >= 0 ? only : argmin_bodies<8>::last_lowest(scores, count, nan);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static int lowest_of(float const* scores, int const* position, int count,
                                                      position_range among, std::int64_t* nan) {
    int const only = among.is_all() ? avx2_lowest<row_of_scores>::only({scores}, count) : -1;
    return only >= 0 ? only : argmin_bodies<8>::lowest_of(scores, position, count, among, nan);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static int count_from(int const* position, int count, int limit) {
    return argmin_bodies<8>::count_from(position, count, limit);
  }
  static constexpr argmin_kernels kernels{last_lowest, lowest_of, count_from};
};

/// Finds the lowest score of a row, block after block of 128 scores, if it is the only one.
struct avx512_lowest {
  static constexpr int block = 128;
  static constexpr int ahead = 1024;  ///< what is fetched early: 4 KiB, behind a short row that of the next lane

  __m512 low;
  __m512i first;  ///< the first block of each column that has `low`, and the last one
  __m512i last;
  __m512 sums[2];  ///< NaN if a score is; if infinities of both signs are among them, too

  /// The index of the lowest of `count` scores, or -1 if several may be the lowest, or one NaN.
  [[gnu::target(KVPOLICY_AVX512)]] static int only_lowest(float const* scores, int count) {
    avx512_lowest found;
    found.low = _mm512_set1_ps(std::numeric_limits<float>::infinity());
    found.first = found.last = _mm512_setzero_si512();
    found.sums[0] = found.sums[1] = _mm512_setzero_ps();
    int e = 0;
    for (; e + block <= count; e += block) {
      for (int i = 0; i < block; i += 16) __builtin_prefetch(scores + e + ahead + i, 0, 3);
      __m512 part[8];
      for (int v = 0; v < 8; ++v) part[v] = whole(scores + e + 16 * v);
      found.note(part, e);
    }
    for (; e < count; e += 16) {
      __m512 const part = some(scores + e, count - e);
      found.sums[0] = _mm512_add_ps(found.sums[0], _mm512_maskz_mov_ps(mask_of(count - e), part));
      found.lower(part, e);
    }
    return found.entry(scores, count);
  }

 private:
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512 whole(float const* from) {
    __m512 read;
    get_once(read, from);
    return read;
  }
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512 lower_of(__m512 const& a, __m512 const& b) {
    return _mm512_maskz_min_ps(0xFFFF, a, b);  // g++ 12 warns of an undefined operand of the other form
  }
  /// The first `count` of 16 scores.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __mmask16 mask_of(int count) {
    return static_cast<__mmask16>(_bzhi_u32(0xFFFF, static_cast<unsigned>(count < 0 ? 0 : count > 16 ? 16 : count)));
  }
  /// These scores, and infinities instead of the others.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512 some(float const* from, int count) {
    return _mm512_mask_loadu_ps(_mm512_set1_ps(std::numeric_limits<float>::infinity()), mask_of(count), from);
  }

  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline void note(__m512 const (&part)[8], int e) {
    __m512 least[4];
    for (int v = 0; v < 4; ++v) {
      least[v] = lower_of(part[2 * v], part[2 * v + 1]);
      sums[v % 2] = _mm512_add_ps(sums[v % 2], _mm512_add_ps(part[2 * v], part[2 * v + 1]));
    }
    lower(lower_of(lower_of(least[0], least[1]), lower_of(least[2], least[3])), e);
  }
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline void lower(__m512 const& here, int e) {
    __m512i const now = _mm512_set1_epi32(e);
    first = _mm512_mask_mov_epi32(first, _mm512_cmp_ps_mask(here, low, _CMP_LT_OQ), now);
    last = _mm512_mask_mov_epi32(last, _mm512_cmp_ps_mask(here, low, _CMP_LE_OQ), now);
    low = lower_of(here, low);
  }

  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline int entry(float const* scores, int count) const {
    lowest_search<16>::floats const lows = low;
    __m512 const lowest = _mm512_set1_ps(lowest_search<16>::least_of(lows));
    auto const columns = _mm512_cmp_ps_mask(low, lowest, _CMP_EQ_OQ);
    auto const apart = _mm512_mask_cmpneq_epi32_mask(columns, first, last);
    __m512 const sum = _mm512_add_ps(sums[0], sums[1]);
    if (__builtin_popcount(columns) != 1 || apart != 0 || _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q) != 0) return -1;
    int blocks[16];
    put(first, blocks);
    int const begin = blocks[__builtin_ctz(columns)];
    unsigned long long found[2] = {};
    for (int v = 0; v < 8; ++v) {
      int const e = begin + 16 * v;
      __mmask16 const there = begin + block <= count ? mask_of(16) : mask_of(count - e);
      auto const same = _mm512_mask_cmp_ps_mask(there, _mm512_maskz_loadu_ps(there, scores + e), lowest, _CMP_EQ_OQ);
      found[v / 4] |= static_cast<unsigned long long>(same) << (16 * (v % 4));
    }
    if (__builtin_popcountll(found[0]) + __builtin_popcountll(found[1]) != 1) return -1;
    return begin + (found[0] != 0 ? __builtin_ctzll(found[0]) : 64 + __builtin_ctzll(found[1]));
  }
};

struct avx512_argmin {
  [[gnu::target(KVPOLICY_AVX512)]] static int last_lowest(float const* scores, int count, std::int64_t* nan) {
    int const only = avx512_lowest::only_lowest(scores, count);
    return only >= 0 ? only : argmin_bodies<16>::last_lowest(scores, count, nan);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static int count_from(int const* position, int count, int limit) {
    return argmin_bodies<16>::count_from(position, count, limit);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static int lowest_of(float const* scores, int const* position, int count,
                                                        position_range among, std::int64_t* nan) {
    int const only = among.is_all() ? avx512_lowest::only_lowest(scores, count) : -1;
    if (only >= 0) return only;
    return avx2_argmin::lowest_of(scores, position, count, among, nan);  // g++ 12 chooses slowly between wider vectors
  }
  static constexpr argmin_kernels kernels{last_lowest, lowest_of, count_from};
};

#endif

/// The kernel for an executor's instruction set.
[[nodiscard]] inline argmin_kernels const& argmin_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_argmin::kernels;
  if (simd_level == isa::avx2) return avx2_argmin::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_argmin::kernels;
}

#endif

}  // namespace KVPOLICY_NAMESPACE::detail
