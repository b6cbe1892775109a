// Sums of the squares of rows, for each instruction set. All of them add in the order of norm_bodies.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/norm_avx2.hpp>
#include <kvpolicy/ops/host/norm_bodies.hpp>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace KVPOLICY_NAMESPACE::detail {

/// Writes the sums of squares of `count` rows of `dims` contiguous elements each. With every line of a row a line of
/// the row `ahead` at the same index is prefetched into the second-level cache: as many lines are always underway, and
/// far enough ahead of their use. Rows `ahead` are not read.
struct norm_kernels {
  using function = void (*)(norm_rows rows, norm_rows ahead, int count, int dims, double* out);
  function f32 = nullptr;
  function f16 = nullptr;
  function bf16 = nullptr;
  /// The roots of sixteen sums, each of which is rounded to a float.
  using root_function = void (*)(double const* sums, float* norms);
  root_function roots = nullptr;

  [[nodiscard]] function of(codec element) const {
    return element == codec::f32 ? f32 : element == codec::f16 ? f16 : bf16;
  }
};

#if defined(KVPOLICY_COMPILED)
[[nodiscard]] norm_kernels const& norms_for(isa simd_level);
[[nodiscard]] double strided_square_sum(codec element, std::byte const* row, std::int64_t step, int dims);
#else
/// What the kernels compute, of elements that are `step` bytes apart.
[[nodiscard]] inline double strided_square_sum(codec element, std::byte const* row, std::int64_t step, int dims) {
  if (element == codec::f32) return wide_square_sum(element, row, step, dims);
  float sums[narrow_sums_of_a_norm] = {};
  for (int d = 0; d < dims; ++d) {
    float const value = number_at(element, row + d * step);
    sums[d % 2 * 32 + d / 2 % 32] += value * value;
  }
  for (int half : {32, 16}) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  double all[sums_of_a_norm];
  for (int i = 0; i < sums_of_a_norm; ++i) all[i] = static_cast<double>(sums[i]);
  double const made = add_sums(all);
  return fits_float(made) ? made : wide_square_sum(element, row, step, dims);
}

/// Code for any compiler and processor.
struct portable_norms {
  static void f32(norm_rows rows, norm_rows ahead, int count, int dims, double* out) {
    norm_bodies<4>::wide_sums(rows, ahead, count, dims, out);
  }
  static void f16(norm_rows rows, norm_rows ahead, int count, int dims, double* out) {
    norm_bodies<4>::template narrow_sums<codec::f16>(rows, ahead, count, dims, out);
  }
  static void bf16(norm_rows rows, norm_rows ahead, int count, int dims, double* out) {
    norm_bodies<4>::template narrow_sums<codec::bf16>(rows, ahead, count, dims, out);
  }
  static void roots(double const* sums, float* norms) {
    for (int i = 0; i < 16; ++i) norms[i] = static_cast<float>(std::sqrt(sums[i]));
  }
  static constexpr norm_kernels kernels{f32, f16, bf16, roots};
};

#if defined(__x86_64__)

struct avx2_norms {
  [[gnu::target(KVPOLICY_AVX2)]] static void f32(norm_rows rows, norm_rows ahead, int count, int dims, double* out) {
    avx2_norm_sums::sums<codec::f32>(rows, ahead, count, dims, out);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void f16(norm_rows rows, norm_rows ahead, int count, int dims, double* out) {
    avx2_norm_sums::sums<codec::f16>(rows, ahead, count, dims, out);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void bf16(norm_rows rows, norm_rows ahead, int count, int dims, double* out) {
    avx2_norm_sums::sums<codec::bf16>(rows, ahead, count, dims, out);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void roots(double const* sums, float* norms) {
    for (int i = 0; i < 16; i += 4) {
      _mm_storeu_ps(norms + i, _mm256_cvtpd_ps(_mm256_sqrt_pd(_mm256_loadu_pd(sums + i))));
    }
  }
  static constexpr norm_kernels kernels{f32, f16, bf16, roots};
};

struct avx512_norms {
  [[gnu::target(KVPOLICY_AVX512)]] static void f32(norm_rows rows, norm_rows ahead, int count, int dims, double* out) {
    sums<codec::f32>(rows, ahead, count, dims, out);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void f16(norm_rows rows, norm_rows ahead, int count, int dims, double* out) {
    sums<codec::f16>(rows, ahead, count, dims, out);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void bf16(norm_rows rows, norm_rows ahead, int count, int dims, double* out) {
    sums<codec::bf16>(rows, ahead, count, dims, out);
  }
  static constexpr norm_kernels kernels{f32, f16, bf16, avx2_norms::roots};

 private:
  /// The sums of eight rows are added together at a time.
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void sums(norm_rows rows, norm_rows ahead,
                                                                               int count, int dims, double* out) {
    for (int r = 0; r < count; r += 8) {
      int const some = std::min(8, count - r);
      __m512d const total =
          of_eight<Element>(rows + r, ahead + r, some - 1, dims, std::make_integer_sequence<int, 8>{});
      auto const there = static_cast<__mmask8>((1 << some) - 1);
      _mm512_mask_storeu_pd(out + r, there, total);
      if (Element == codec::f32) continue;
      auto const fit = _mm512_cmp_pd_mask(total, _mm512_set1_pd(least_in_float), _CMP_GE_OQ) &
                       _mm512_cmp_pd_mask(total, _mm512_set1_pd(most_in_float), _CMP_LE_OQ);
      for (int i = 0; i < some && (fit & there) != there; ++i) {
        if (!fits_float(out[r + i])) out[r + i] = wide_square_sum(Element, rows[r + i], 2, dims);
      }
    }
  }

  /// The sums of rows 0 to `last`; then that of the last one again. Partial sums stay in registers: reads of rows would
  /// wait for stores to addresses with the same lower bits.
  template <codec Element, int... I>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512d of_eight(
      norm_rows rows, norm_rows ahead, int last, int dims, std::integer_sequence<int, I...>) {
    __m512d const eight[] = {of_row<Element>(rows[std::min(I, last)], ahead[std::min(I, last)], dims)...};
    return totals(eight);
  }

  template <codec Element>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512d of_row(std::byte const* row,
                                                                                    std::byte const* ahead, int dims) {
    if constexpr (Element == codec::f32) {
      return of_wide(row, ahead, dims);
    } else {
      return of_narrow<Element>(row, ahead, dims);
    }
  }

  /// The sixteen partial sums of an f32 row, of which the first eight and the last eight are added.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512d of_wide(std::byte const* row,
                                                                                     std::byte const* ahead, int dims) {
    __m512d sum[2] = {};
    int at = 0;
    for (; at + 64 <= 4 * dims; at += 64) {
      prefetch_here(ahead + at);
      for (int c = 0; c < 2; ++c) {
        __m512d const value =
            _mm512_maskz_cvtps_pd(0xFF, _mm256_loadu_ps(reinterpret_cast<float const*>(row + at + 32 * c)));
        sum[c] = _mm512_fmadd_pd(value, value, sum[c]);
      }
    }
    for (int c = 0; c < 2 && at < 4 * dims; ++c, at += 32) {
      auto const there = static_cast<__mmask8>((1u << std::min(8, dims - at / 4)) - 1);
      __m512d const value = _mm512_maskz_cvtps_pd(there, _mm256_maskz_loadu_ps(there, row + at));
      sum[c] = _mm512_fmadd_pd(value, value, sum[c]);
    }
    return _mm512_add_pd(sum[0], sum[1]);
  }

  /// The same for a row of f16 or bf16, of whose 64 partial sums four are added at a time in float.
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512d of_narrow(std::byte const* row,
                                                                                       std::byte const* ahead,
                                                                                       int dims) {
    __m512 sum[4] = {};
    int at = 0;
    for (; at + 128 <= 2 * dims; at += 128) {
      add<Element, true>(row + at, ahead + at, sum, 0);
    }
    if (at < 2 * dims) add<Element, false>(row + at, ahead + at, sum, (std::uint64_t{1} << (dims - at / 2)) - 1);
    if constexpr (Element == codec::f16) add_neighbours(sum);
    __m512 const four = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
    return _mm512_add_pd(_mm512_maskz_cvtps_pd(0xFF, _mm512_maskz_extractf32x8_ps(0xFF, four, 0)),
                         _mm512_maskz_cvtps_pd(0xFF, _mm512_maskz_extractf32x8_ps(0xFF, four, 1)));
  }

  /// Adds the squares of 64 elements, or of those that `there` has bits for, to partial sums. Those of f16 are in the
  /// order of the elements; a pair of vectors of bf16 has the lower and the upper halves of words.
  template <codec Element, bool All>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void add(std::byte const* from,
                                                                              std::byte const* ahead, __m512* sum,
                                                                              std::uint64_t there) {
    for (int c = 0; c < 4; ++c) {
      if (c % 2 == 0) prefetch_here(ahead + 32 * c);
      __m512 value;
      if constexpr (Element == codec::f16) {
        __m256i const some = All ? _mm256_loadu_si256(reinterpret_cast<__m256i const*>(from + 32 * c))
                                 : _mm256_maskz_loadu_epi16(static_cast<__mmask16>(there >> (16 * c)), from + 32 * c);
        value = _mm512_maskz_cvtph_ps(0xFFFF, some);
      } else {
        int const line = c / 2;
        __m512i const both =
            All ? _mm512_loadu_si512(from + 64 * line)
                : _mm512_maskz_loadu_epi16(static_cast<__mmask32>(there >> (32 * line)), from + 64 * line);
        value = _mm512_castsi512_ps(c % 2 == 0 ? _mm512_maskz_slli_epi32(0xFFFF, both, 16)
                                               : _mm512_and_si512(both, _mm512_set1_epi32(-0x10000)));
      }
      sum[c] = _mm512_fmadd_ps(value, value, sum[c]);
    }
  }

  /// Turns each pair of vectors of partial sums into those of its even and those of its odd elements.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void add_neighbours(__m512* sum) {
    __m512i const evens = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    __m512i const odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    for (int c = 0; c < 4; c += 2) {
      __m512 const low = _mm512_permutex2var_ps(sum[c], evens, sum[c + 1]);
      sum[c + 1] = _mm512_permutex2var_ps(sum[c], odds, sum[c + 1]);
      sum[c] = low;
    }
  }

  /// Adds the eight partial sums of each of eight rows: first those four apart, then two, then one.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512d totals(__m512d const* eight) {
    __m512d four[4], two[2];
    for (int i = 0; i < 4; ++i) {
      __m512d const *const one = eight + i + i / 2 * 2, *const other = one + 2;
      four[i] = _mm512_add_pd(_mm512_maskz_shuffle_f64x2(0xFF, *one, *other, 0x44),
                              _mm512_maskz_shuffle_f64x2(0xFF, *one, *other, 0xEE));
    }
    for (int i = 0; i < 2; ++i) {
      two[i] = _mm512_add_pd(_mm512_maskz_shuffle_f64x2(0xFF, four[i], four[i + 2], 0x88),
                             _mm512_maskz_shuffle_f64x2(0xFF, four[i], four[i + 2], 0xDD));
    }
    return _mm512_add_pd(_mm512_maskz_unpacklo_pd(0xFF, two[0], two[1]),
                         _mm512_maskz_unpackhi_pd(0xFF, two[0], two[1]));
  }
};

#endif

/// The kernels for an executor's instruction set.
[[nodiscard]] inline norm_kernels const& norms_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_norms::kernels;
  if (simd_level == isa::avx2) return avx2_norms::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_norms::kernels;
}

#endif

}  // namespace KVPOLICY_NAMESPACE::detail
