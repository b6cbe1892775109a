// Sums of the squares of rows with AVX2, in the order of norm_bodies.hpp.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <kvpolicy/ops/host/norm_bodies.hpp>
#include <utility>

namespace KVPOLICY_NAMESPACE::detail {

/// The sums of four rows are added together at a time. Partial sums stay in registers.
struct avx2_norm_sums {
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline void sums(norm_rows rows, norm_rows ahead, int count,
                                                                             int dims, double* out) {
    for (int r = 0; r < count; r += 4) {
      int const some = std::min(4, count - r);
      double four[4];
      _mm256_storeu_pd(four,
                       of_four<Element>(rows + r, ahead + r, some - 1, dims, std::make_integer_sequence<int, 4>{}));
      for (int i = 0; i < some; ++i) {
        bool const fits = Element == codec::f32 || fits_float(four[i]);
        out[r + i] = fits ? four[i] : wide_square_sum(Element, rows[r + i], 2, dims);
      }
    }
  }

 private:
  using four_vectors = std::make_integer_sequence<int, 4>;

  /// The sums of rows 0 to `last`; then that of the last one again.
  template <codec Element, int... I>
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline __m256d of_four(norm_rows rows, norm_rows ahead,
                                                                                   int last, int dims,
                                                                                   std::integer_sequence<int, I...>) {
    __m256d const four[] = {of_row<Element>(rows[std::min(I, last)], ahead[std::min(I, last)], dims)...};
    return totals(four);
  }

  template <codec Element>
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline __m256d of_row(std::byte const* row,
                                                                                  std::byte const* ahead, int dims) {
    if constexpr (Element == codec::f32) {
      return of_wide(row, ahead, dims, four_vectors{});
    } else {
      return of_narrow<Element>(row, ahead, dims);
    }
  }

  /// The sixteen partial sums of an f32 row, of which four are added at a time.
  template <int... C>
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline __m256d of_wide(std::byte const* row,
                                                                                   std::byte const* ahead, int dims,
                                                                                   std::integer_sequence<int, C...>) {
    __m256d sum[] = {_mm256_set1_pd(0.0 * C)...};
    int at = 0;
    for (; at + 64 <= 4 * dims; at += 64) {
      prefetch_here(ahead + at);
      ((sum[C] = plus_square(sum[C], row + at + 16 * C)), ...);
    }
    if (at < 4 * dims) {
      std::byte rest[64] = {};
      std::memcpy(rest, row + at, static_cast<std::size_t>(4 * dims - at));
      ((sum[C] = plus_square(sum[C], rest + 16 * C)), ...);
    }
    return _mm256_add_pd(_mm256_add_pd(sum[0], sum[2]), _mm256_add_pd(sum[1], sum[3]));
  }
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline __m256d plus_square(__m256d const& sum,
                                                                                       std::byte const* from) {
    __m256d const value = _mm256_cvtps_pd(_mm_loadu_ps(reinterpret_cast<float const*>(from)));
    return _mm256_fmadd_pd(value, value, sum);
  }

  /// The same for a row of f16 or bf16, of whose 64 partial sums four are added at a time in float.
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline __m256d of_narrow(std::byte const* row,
                                                                                     std::byte const* ahead, int dims) {
    __m256 const zero = _mm256_setzero_ps();
    __m256 sum[] = {zero, zero, zero, zero, zero, zero, zero, zero};
    int at = 0;
    for (; at + 128 <= 2 * dims; at += 128) {
      prefetch_here(ahead + at);
      prefetch_here(ahead + at + 64);
      add<Element>(row + at, sum, four_vectors{});
    }
    if (at < 2 * dims) {
      std::byte rest[128] = {};
      std::memcpy(rest, row + at, static_cast<std::size_t>(2 * dims - at));
      add<Element>(rest, sum, four_vectors{});
    }
    if constexpr (Element == codec::f16) add_neighbours(sum, four_vectors{});
    __m256 const low = _mm256_add_ps(_mm256_add_ps(sum[0], sum[4]), _mm256_add_ps(sum[2], sum[6]));
    __m256 const high = _mm256_add_ps(_mm256_add_ps(sum[1], sum[5]), _mm256_add_ps(sum[3], sum[7]));
    __m256d const even =
        _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(low)), _mm256_cvtps_pd(_mm256_castps256_ps128(high)));
    __m256d const odd =
        _mm256_add_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(low, 1)), _mm256_cvtps_pd(_mm256_extractf128_ps(high, 1)));
    return _mm256_add_pd(even, odd);
  }

  /// Adds the squares of 64 elements. The sums of f16 are in the order of the elements. The first four vectors of sums
  /// of bf16 are those of the lower halves of words, and the others those of the upper halves.
  template <codec Element, int... C>
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline void add(std::byte const* from, __m256* sum,
                                                                            std::integer_sequence<int, C...>) {
    if constexpr (Element == codec::f16) {
      ((sum[C] = plus_square_of_f16(sum[C], from + 16 * C)), ...);
      ((sum[4 + C] = plus_square_of_f16(sum[4 + C], from + 64 + 16 * C)), ...);
    } else {
      (add_words(from + 32 * C, sum[C], sum[4 + C]), ...);
    }
  }
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline __m256 plus_square_of_f16(__m256 const& sum,
                                                                                             std::byte const* from) {
    __m256 const value = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<__m128i const*>(from)));
    return _mm256_fmadd_ps(value, value, sum);
  }
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline void add_words(std::byte const* from, __m256& lower,
                                                                                  __m256& upper) {
    __m256i const both = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(from));
    __m256 const low = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    __m256 const high = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(-0x10000)));
    lower = _mm256_fmadd_ps(low, low, lower);
    upper = _mm256_fmadd_ps(high, high, upper);
  }

  /// Adds the sums of neighbours, which are in the first four vectors then. The others become zero.
  template <int... C>
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline void add_neighbours(
      __m256* sum, std::integer_sequence<int, C...>) {
    __m256 const pairs[] = {neighbours(sum[2 * C], sum[2 * C + 1])...};
    ((sum[C] = pairs[C]), ...);
    ((sum[4 + C] = _mm256_setzero_ps()), ...);
  }
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline __m256 neighbours(__m256 const& a, __m256 const& b) {
    __m256d const swapped = _mm256_castps_pd(_mm256_hadd_ps(a, b));
    return _mm256_castpd_ps(_mm256_permute4x64_pd(swapped, 0xD8));
  }

  /// Adds the four partial sums of each of four rows: first those two apart, and then the neighbours.
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline __m256d totals(__m256d const* four) {
    __m256d const first =
        _mm256_add_pd(_mm256_permute2f128_pd(four[0], four[2], 0x20), _mm256_permute2f128_pd(four[0], four[2], 0x31));
    __m256d const second =
        _mm256_add_pd(_mm256_permute2f128_pd(four[1], four[3], 0x20), _mm256_permute2f128_pd(four[1], four[3], 0x31));
    return _mm256_hadd_pd(first, second);
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail

#endif
