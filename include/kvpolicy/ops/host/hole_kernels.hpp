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
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

struct hole_kernels {
  /// The number of slots that are not below `least`.
  int (*count_from)(int const* slots, int count, int least) = nullptr;
  /// Lists the slots that are not below `least`, in the order of the list. `to` has memory for `count` of them.
  void (*list_from)(int const* slots, int count, int least, int* to) = nullptr;
  /// Removes the marked slots from a list. Of those that stay and are not below `least`, number i becomes holes[i], and
  /// its old value moved[i]. One more element of `holes` and of `moved` may be touched than there are holes.
  void (*fill)(int* slots, unsigned char const* gone, int count, int least, int const* holes, int* moved) = nullptr;
};

/// Code for any compiler and processor. There are no branches: which slots are high, and which stay, is unpredictable.
struct portable_holes {
  KVPOLICY_VECTORIZED static int count_from(int const* slots, int count, int least) {
    int from = 0;
    for (int e = 0; e < count; ++e) from += slots[e] >= least ? 1 : 0;
    return from;
  }
  static void list_from(int const* slots, int count, int least, int* to) {
    int listed = 0;
    for (int e = 0; e < count; ++e) {
      to[listed] = slots[e];
      listed += slots[e] >= least ? 1 : 0;
    }
  }
  static void fill(int* slots, unsigned char const* gone, int count, int least, int const* holes, int* moved) {
    int to = 0, next = 0;
    for (int e = 0; e < count; ++e) {
      int const is = slots[e];
      bool const stays = gone[e] == 0, leaves = stays && is >= least;
      int const hole = holes[next];
      moved[next] = is;
      next += leaves ? 1 : 0;
      slots[to] = leaves ? hole : is;  // slots[to] was read before, since to <= e
      to += stays ? 1 : 0;
    }
  }
  static constexpr hole_kernels kernels{count_from, list_from, fill};
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
  [[gnu::target(KVPOLICY_AVX2)]] static void list_from(int const* slots, int count, int least, int* to) {
    __m256i const limit = _mm256_set1_epi32(least);
    int e = 0;
    for (; e + 8 <= count; e += 8) {
      __m256i const some = eight(slots + e);
      unsigned const which = high(some, limit);
      put_selected(some, which, to);  // no more than the places of the slots that were read
      to += __builtin_popcount(which);
    }
    portable_holes::list_from(slots + e, count - e, least, to);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void fill(int* slots, unsigned char const* gone, int count, int least,
                                                  int const* holes, int* moved) {
    __m256i const limit = _mm256_set1_epi32(least);
    int* to = slots;
    int e = 0;
    for (; e + 8 <= count; e += 8) {
      __m128i const marks = _mm_loadl_epi64(reinterpret_cast<__m128i const*>(gone + e));
      __m256i some = eight(slots + e);
      auto const stays = static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(marks, _mm_setzero_si128()))) & 0xFFu;
      unsigned const leaves = stays & high(some, limit);
      if (leaves != 0) {
        int const leaving = __builtin_popcount(leaves);
        put_selected(some, leaves, leaving, false, moved);
        some = with_holes(some, leaves, _mm256_maskload_epi32(holes, first_of_eight(leaving)));
        moved += leaving, holes += leaving;
      }
      put_selected(some, stays, to);  // at places of slots that were read
      to += __builtin_popcount(stays);
    }
    for (; e < count; ++e) {
      int const is = slots[e];
      if (gone[e] != 0) continue;
      bool const leaves = is >= least;
      *to++ = leaves ? *holes++ : is;
      if (leaves) *moved++ = is;
    }
  }

 private:
  /// Eight slots, of which the selected ones are replaced by the first of `holes`.
  [[gnu::target(KVPOLICY_AVX2)]] static __m256i with_holes(__m256i slots, unsigned which, __m256i holes) {
    __m256i const rank = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(ranks.of[which])));
    __m256i const bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i const selected = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(which)), bit), bit);
    return _mm256_blendv_epi8(slots, _mm256_permutevar8x32_epi32(holes, rank), selected);
  }

 public:
  static constexpr hole_kernels kernels{count_from, list_from, fill};
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
  [[gnu::target(KVPOLICY_AVX512)]] static void list_from(int const* slots, int count, int least, int* to) {
    __m512i const limit = _mm512_set1_epi32(least);
    for (int e = 0; e < count; e += 16) {
      __mmask16 const there = first(count - e);
      __m512i const some = _mm512_maskz_loadu_epi32(there, slots + e);
      __mmask16 const high = _mm512_mask_cmpge_epi32_mask(there, some, limit);
      int const more = __builtin_popcount(high);
      _mm512_mask_storeu_epi32(to, first(more), _mm512_maskz_compress_epi32(high, some));
      to += more;
    }
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void fill(int* slots, unsigned char const* gone, int count, int least,
                                                    int const* holes, int* moved) {
    __m512i const limit = _mm512_set1_epi32(least);
    int* to = slots;
    for (int e = 0; e < count; e += 16) {
      __mmask16 const there = first(count - e);
      __m128i const marks = _mm_maskz_loadu_epi8(there, gone + e);
      auto const stays = static_cast<__mmask16>(there & ~_mm_test_epi8_mask(marks, marks));
      __m512i some = _mm512_maskz_loadu_epi32(there, slots + e);
      __mmask16 const leaves = _mm512_mask_cmpge_epi32_mask(stays, some, limit);
      int const leaving = __builtin_popcount(leaves), staying = __builtin_popcount(stays);
      _mm512_mask_storeu_epi32(moved, first(leaving), _mm512_maskz_compress_epi32(leaves, some));
      some = _mm512_mask_expand_epi32(some, leaves, _mm512_maskz_loadu_epi32(first(leaving), holes));
      _mm512_mask_storeu_epi32(to, first(staying), _mm512_maskz_compress_epi32(stays, some));
      moved += leaving, holes += leaving, to += staying;
    }
  }
  static constexpr hole_kernels kernels{count_from, list_from, fill};
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

/// A number that exactly `many` of `count` distinct slots are not below; `many` is at least 1. In a pool without gaps
/// the first guess is right, because no more than `many` slots fit there. Every second guess halves the range.
[[nodiscard]] inline int lowest_of_highest(hole_kernels const& with, int const* slots, int count, int many,
                                           std::int64_t units) {
  std::int64_t low = 0, high = units;  // at least `many` slots are not below `low`, and fewer not below `high`
  int above = 0;                       // slots that are not below `high`
  for (bool halve = false; high - low > 1; halve = !halve) {
    std::int64_t const guess = std::max(low + 1, halve ? low + (high - low) / 2 : high - (many - above));
    int const from = with.count_from(slots, count, static_cast<int>(guess));
    if (from == many) return static_cast<int>(guess);
    if (from < many) above = from;
    (from > many ? low : high) = guess;
  }
  return static_cast<int>(low);
}

}  // namespace KVPOLICY_NAMESPACE::detail
