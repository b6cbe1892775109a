// What fill_holes does with a list of slots, for each instruction set.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/packed_bits.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

struct hole_kernels {
  /// The number of slots that are not below `least`.
  int (*count_from)(int const* slots, int count, int least) = nullptr;
  /// Lists the places of the slots that are not below `least`, ascending, and returns their number. `to` has memory for
  /// `count` of them.
  int (*list_from)(int const* slots, int count, int least, int* to) = nullptr;
};

/// Code for any compiler and processor. There is no branch for a slot: which ones are high is unpredictable.
struct portable_holes {
  KVPOLICY_VECTORIZED static int count_from(int const* slots, int count, int least) {
    int from = 0;
    for (int e = 0; e < count; ++e) from += slots[e] >= least ? 1 : 0;
    return from;
  }
  static int list_from(int const* slots, int count, int least, int* to) {
    return list_from(slots, 0, count, least, to);
  }
  static int list_from(int const* slots, int begin, int end, int least, int* to) {
    int listed = 0;
    for (int e = begin; e < end; ++e) {
      to[listed] = e;
      listed += slots[e] >= least ? 1 : 0;
    }
    return listed;
  }
  static constexpr hole_kernels kernels{count_from, list_from};
};

#if defined(__x86_64__)

/// Eight slots at a time; the last ones by the code for any processor.
struct avx2_holes {
  [[gnu::target(KVPOLICY_AVX2)]] static __m256i eight(int const* from) {
    return _mm256_loadu_si256(reinterpret_cast<__m256i const*>(from));
  }
  /// The bits of slots that are not below a limit.
  [[gnu::target(KVPOLICY_AVX2)]] static unsigned high(__m256i slots, __m256i limit) {
    __m256i const low = _mm256_cmpgt_epi32(limit, slots);
    return ~static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(low))) & 0xFFu;
  }
  [[gnu::target(KVPOLICY_AVX2)]] static int count_from(int const* slots, int count, int least) {
    __m256i const limit = _mm256_set1_epi32(least);
    int from = 0;
    int e = 0;
    for (; e + 8 <= count; e += 8) from += __builtin_popcount(high(eight(slots + e), limit));
    return from + portable_holes::count_from(slots + e, count - e, least);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static int list_from(int const* slots, int count, int least, int* to) {
    __m256i const limit = _mm256_set1_epi32(least);
    __m256i place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    int listed = 0;
    int e = 0;
    for (; e + 8 <= count; e += 8) {
      unsigned const which = high(eight(slots + e), limit);
      put_selected(place, which, to + listed);  // no more than the places of the slots that were read
      listed += __builtin_popcount(which);
      place = _mm256_add_epi32(place, _mm256_set1_epi32(8));
    }
    return listed + portable_holes::list_from(slots, e, count, least, to + listed);
  }
  static constexpr hole_kernels kernels{count_from, list_from};
};

struct avx512_holes {
  [[gnu::target(KVPOLICY_AVX512)]] static __mmask16 first(int count) {
    return static_cast<__mmask16>(count >= 16 ? 0xFFFFu : (1u << count) - 1);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static int count_from(int const* slots, int count, int least) {
    __m512i const limit = _mm512_set1_epi32(least);
    int from = 0;
    for (int e = 0; e < count; e += 16) {
      __mmask16 const there = first(count - e);
      __m512i const some = _mm512_maskz_loadu_epi32(there, slots + e);
      from += __builtin_popcount(_mm512_mask_cmpge_epi32_mask(there, some, limit));
    }
    return from;
  }
  [[gnu::target(KVPOLICY_AVX512)]] static int list_from(int const* slots, int count, int least, int* to) {
    __m512i const limit = _mm512_set1_epi32(least);
    __m512i place = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int listed = 0;
    for (int e = 0; e < count; e += 16) {
      __mmask16 const there = first(count - e);
      prefetch_stream(slots + e);
      __m512i const some = _mm512_maskz_loadu_epi32(there, slots + e);
      __mmask16 const high = _mm512_mask_cmpge_epi32_mask(there, some, limit);
      int const more = __builtin_popcount(high);
      _mm512_mask_storeu_epi32(to + listed, first(more), _mm512_maskz_compress_epi32(high, place));
      listed += more;
      place = _mm512_add_epi32(place, _mm512_set1_epi32(16));
    }
    return listed;
  }
  static constexpr hole_kernels kernels{count_from, list_from};
};

#endif

/// The kernels for an executor's instruction set.
[[nodiscard]] inline hole_kernels const& holes_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_holes::kernels;
  if (simd_level >= isa::avx2) return avx2_holes::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_holes::kernels;
}

/// Lists the places of the highest `many` of `count` distinct slots, ascending, and returns a number that exactly these
/// slots are not below. `many` is at least 1; `to` has memory for `count` places. In a pool without gaps the first
/// guess is right, because no more than `many` slots fit there. Every second guess halves the range.
[[nodiscard]] inline int list_highest(hole_kernels const& with, int const* slots, int count, int many,
                                      std::int64_t units, int* to) {
  std::int64_t guess = std::max(std::int64_t{1}, units - many);
  if (with.list_from(slots, count, static_cast<int>(guess), to) == many) return static_cast<int>(guess);
  std::int64_t low = 0, high = units;  // at least `many` slots are not below `low`, and fewer not below `high`
  int above = 0;                       // slots that are not below `high`
  for (bool halve = true; high - low > 1; halve = !halve) {
    guess = std::max(low + 1, halve ? low + (high - low) / 2 : high - (many - above));
    int const from = with.count_from(slots, count, static_cast<int>(guess));
    if (from < many) above = from;
    (from >= many ? low : high) = guess;
    if (from == many) break;
  }
  with.list_from(slots, count, static_cast<int>(low), to);
  return static_cast<int>(low);
}

}  // namespace KVPOLICY_NAMESPACE::detail
