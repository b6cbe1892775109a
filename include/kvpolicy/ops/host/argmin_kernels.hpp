// Finds the lowest score of a row, for each instruction set.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
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

/// Finds the lowest score of a row, block after block of 128 scores, if it is the only one. Blocks begin at a multiple
/// of 64 bytes: a vector that lies in two cache lines is read twice.
struct avx512_lowest {
  static constexpr int block = 128;
  static constexpr int ahead = 1024;  ///< what is fetched early: 4 KiB, behind a short row that of the next lane
  static constexpr float none = std::numeric_limits<float>::infinity();

  __m512 low;
  __m512i first;  ///< the first block of each column that has `low`, and the last one
  __m512i last;
  __mmask16 numbers[2];  ///< a bit is 0 if a score of its column is NaN

  /// The index of the lowest of `count` scores, or -1 if several may be the lowest, or one is NaN.
  [[gnu::target(KVPOLICY_AVX512)]] static int only_lowest(float const* scores, int count) {
    avx512_lowest found;
    found.low = _mm512_set1_ps(none);
    found.first = found.last = _mm512_setzero_si512();
    found.numbers[0] = found.numbers[1] = mask_of(16);
    int e = before_aligned(scores);
    if (e > 0) found.lower(found.some(scores, e < count ? e : count), 0);
    for (; e + block <= count; e += block) {
      for (int i = 0; i < block; i += 16) __builtin_prefetch(scores + e + ahead + i, 0, 3);
      __m512 part[8];
      for (int v = 0; v < 8; ++v) part[v] = whole(scores + e + 16 * v);
      found.note(part, e);
    }
    if (e < count) found.note_rest(scores + e, e, count - e);
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
    return static_cast<__mmask16>(_bzhi_u32(0xFFFF, static_cast<unsigned>(count)));
  }
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline int before_aligned(float const* scores) {
    return static_cast<int>((0 - reinterpret_cast<std::uintptr_t>(scores) / sizeof(float)) % 16);
  }

  /// Two vectors are compared at once: they are unordered if either has a NaN.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline void refuse_nan(__m512 const& a, __m512 const& b, int i) {
    numbers[i] = _mm512_mask_cmp_ps_mask(numbers[i], a, b, _CMP_ORD_Q);
  }
  /// These `count` scores, at most 16, and infinities instead of the others.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline __m512 some(float const* from, int count) {
    __m512 const part = _mm512_mask_loadu_ps(_mm512_set1_ps(none), mask_of(count), from);
    refuse_nan(part, part, 0);
    return part;
  }
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline void note(__m512 const (&part)[8], int e) {
    __m512 least[4];
    for (int v = 0; v < 4; ++v) {
      least[v] = lower_of(part[2 * v], part[2 * v + 1]);
      refuse_nan(part[2 * v], part[2 * v + 1], v % 2);
    }
    lower(lower_of(lower_of(least[0], least[1]), lower_of(least[2], least[3])), e);
  }
  /// The last scores, fewer than a block.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline void note_rest(float const* scores, int e, int count) {
    int const whole_vectors = count / 16 * 16;
    __m512 least = some(scores + whole_vectors, count % 16);
    for (int i = 0; i < whole_vectors; i += 16) {
      __m512 const part = whole(scores + i);
      refuse_nan(part, part, 1);
      least = lower_of(part, least);
    }
    lower(least, e);
  }
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline void lower(__m512 const& here, int e) {
    __m512i const now = _mm512_set1_epi32(e);
    first = _mm512_mask_mov_epi32(first, _mm512_cmp_ps_mask(here, low, _CMP_LT_OQ), now);
    last = _mm512_mask_mov_epi32(last, _mm512_cmp_ps_mask(here, low, _CMP_LE_OQ), now);
    low = lower_of(here, low);
  }

  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline float least_of(__m512 const& of) {
    float each[16];
    put(of, each);
    __m128 const low = _mm_min_ps(_mm_loadu_ps(each), _mm_loadu_ps(each + 4));
    __m128 const four = _mm_min_ps(low, _mm_min_ps(_mm_loadu_ps(each + 8), _mm_loadu_ps(each + 12)));
    __m128 const two = _mm_min_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_min_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline int entry(float const* scores, int count) const {
    float const lowest = least_of(low);
    unsigned const columns = _mm512_cmp_ps_mask(low, _mm512_set1_ps(lowest), _CMP_EQ_OQ);
    bool const apart = _mm512_mask_cmpneq_epi32_mask(static_cast<__mmask16>(columns), first, last) != 0;
    if ((numbers[0] & numbers[1]) != 0xFFFF || apart || columns == 0 || (columns & (columns - 1)) != 0) return -1;
    int blocks[16];
    put(first, blocks);
    int const column = __builtin_ctz(columns);
    return entry_of_column(scores, count, blocks[column] + column, lowest);
  }
  /// The only one of the eight entries from `begin` on, sixteen apart, that is the lowest; -1 if several are.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline int entry_of_column(float const* scores, int count,
                                                                                         int begin, float lowest) {
    __m256i const apart = _mm256_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112);
    __m256 const there = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count - begin), apart));
    __m256 const column = _mm256_mask_i32gather_ps(_mm256_set1_ps(none), scores + begin, apart, there, 4);
    __m256 const is_lowest = _mm256_cmp_ps(column, _mm256_set1_ps(lowest), _CMP_EQ_OQ);
    auto const same = static_cast<unsigned>(_mm256_movemask_ps(is_lowest));
    return (same & (same - 1)) != 0 ? -1 : begin + 16 * __builtin_ctz(same);
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
