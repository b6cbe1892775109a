// Sums of rows of f32, f16 and bf16 elements in double, for each instruction set.
//
// 16-bit numbers of four rows are added in float first, because most of the time is the conversion to double. Their
// significands have 8 or 11 bits, so these sums are exact unless one number is some 2000 times as large as another. All
// instruction sets add in the same order, and give the same bits.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <kvpolicy/ops/host/element_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int rows_ahead = 4;

/// to[d] = ((to[d] + rows[0][d]) + rows[1][d]) + ..., of `count` rows of `dims` contiguous elements each. For 16-bit
/// elements to[d] = (to[d] + ((rows[0][d] + rows[1][d]) + (rows[2][d] + rows[3][d]))) + ...; the last
/// one to three rows are added one by one. The rows may begin at any address. The `rows_ahead` rows after them may be
/// prefetched.
struct row_sum_kernels {
  using function = void (*)(std::byte const* const* rows, int count, int dims, double* to);
  function f32 = nullptr;
  function f16 = nullptr;
  function bf16 = nullptr;

  [[nodiscard]] function of(codec element) const {
    return element == codec::f32 ? f32 : element == codec::f16 ? f16 : bf16;
  }
};

inline constexpr int rows_in_float = 4;  ///< whose 16-bit numbers are added before they become double

/// The number of first rows that are added in float, four at a time.
template <codec Element>
[[nodiscard]] constexpr int rows_by_fours(int count) {
  return Element == codec::f32 ? 0 : count / rows_in_float * rows_in_float;
}

/// Adds the channels from `first` on, one by one.
template <codec Element>
inline void add_channels_in_double(std::byte const* const* rows, int count, int first, int dims, double* to) {
  auto const number = [rows](int r, int d) { return load(Element, rows[r] + d * std::ptrdiff_t{bytes_of(Element)}); };
  int const by_fours = rows_by_fours<Element>(count);
  for (int r = 0; r < by_fours; r += rows_in_float) {
    for (int d = first; d < dims; ++d) {
      to[d] += static_cast<double>((number(r, d) + number(r + 1, d)) + (number(r + 2, d) + number(r + 3, d)));
    }
  }
  for (int r = by_fours; r < count; ++r) {
    for (int d = first; d < dims; ++d) to[d] += static_cast<double>(number(r, d));
  }
}

/// Code for any compiler and processor.
struct portable_row_sums {
  template <codec Element>
  KVPOLICY_VECTORIZED static void add(std::byte const* const* rows, int count, int dims, double* to) {
    add_channels_in_double<Element>(rows, count, 0, dims, to);
  }
  static constexpr row_sum_kernels kernels{add<codec::f32>, add<codec::f16>, add<codec::bf16>};
};

#if defined(__x86_64__)

struct avx2_row_sums {
  static constexpr int chains = 8;  ///< vectors of sums that stay in registers
  static constexpr int channels = 4 * chains;

  /// Prefetches a whole row, because each pass over the rows reads only some of its channels.
  template <codec Element>
  [[gnu::always_inline]] static inline void fetch(std::byte const* row, int dims) {
    for (int byte = 0; byte < dims * bytes_of(Element); byte += 64) __builtin_prefetch(row + byte, 0, 3);
  }
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline void add_eight(__m256 numbers, __m256d* sum) {
    sum[0] = _mm256_add_pd(sum[0], _mm256_cvtps_pd(_mm256_castps256_ps128(numbers)));
    sum[1] = _mm256_add_pd(sum[1], _mm256_cvtps_pd(_mm256_extractf128_ps(numbers, 1)));
  }
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX2)]] static void add(std::byte const* const* rows, int count, int dims, double* to) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    int const by_fours = rows_by_fours<Element>(count);
    int d = 0;
    for (; d + channels <= dims; d += channels) {
      __m256d sum[chains];
      for (int c = 0; c < chains; ++c) sum[c] = _mm256_loadu_pd(to + d + 4 * c);
      for (int r = 0; r < by_fours; r += rows_in_float) {
        for (int i = 0; i < rows_in_float && d == 0; ++i) fetch<Element>(rows[r + i + rows_ahead], dims);
        for (int c = 0; c < chains; c += 2) {
          std::ptrdiff_t const at = (d + 4 * c) * width;
          __m256 const low = _mm256_add_ps(avx2_element_rows::eight<Element>(rows[r] + at),
                                           avx2_element_rows::eight<Element>(rows[r + 1] + at));
          __m256 const high = _mm256_add_ps(avx2_element_rows::eight<Element>(rows[r + 2] + at),
                                            avx2_element_rows::eight<Element>(rows[r + 3] + at));
          add_eight(_mm256_add_ps(low, high), sum + c);
        }
      }
      for (int r = by_fours; r < count; ++r) {
        if (d == 0) fetch<Element>(rows[r + rows_ahead], dims);
        for (int c = 0; c < chains; c += 2)
          add_eight(avx2_element_rows::eight<Element>(rows[r] + (d + 4 * c) * width), sum + c);
      }
      for (int c = 0; c < chains; ++c) _mm256_storeu_pd(to + d + 4 * c, sum[c]);
    }
    add_channels_in_double<Element>(rows, count, d, dims, to);
  }
  static constexpr row_sum_kernels kernels{add<codec::f32>, add<codec::f16>, add<codec::bf16>};
};

struct avx512_row_sums {
  static constexpr int chains = 16;
  static constexpr int channels = 8 * chains;

  /// Prefetches a block of a row's channels, from `d` on.
  template <codec Element>
  [[gnu::always_inline]] static inline void fetch(std::byte const* row, int d) {
    std::byte const* const from = row + d * std::ptrdiff_t{bytes_of(Element)};
    for (int byte = 0; byte < channels * bytes_of(Element); byte += 64) __builtin_prefetch(from + byte, 0, 3);
  }
  /// Sixteen channels of a row.
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512 sixteen(std::byte const* from) {
    return avx512_element_rows::sixteen<Element>(from, 0xFFFF);
  }
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void add_sixteen(__m512 numbers, __m512d* sum) {
    __m256 const low = _mm512_maskz_extractf32x8_ps(0xFF, numbers, 0),
                 high = _mm512_maskz_extractf32x8_ps(0xFF, numbers, 1);
    sum[0] = _mm512_add_pd(sum[0], _mm512_maskz_cvtps_pd(0xFF, low));
    sum[1] = _mm512_add_pd(sum[1], _mm512_maskz_cvtps_pd(0xFF, high));
  }
  /// Adds sixteen channels for each two of `Chains` sums, from `d` on.
  template <codec Element, int Chains>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void add_block(std::byte const* const* rows,
                                                                                    int count, int d, double* to) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    int const by_fours = rows_by_fours<Element>(count);
    __m512d sum[static_cast<std::size_t>(Chains)];
    for (int c = 0; c < Chains; ++c) sum[c] = _mm512_loadu_pd(to + d + 8 * c);
    for (int r = 0; r < by_fours; r += rows_in_float) {
      for (int i = 0; i < rows_in_float; ++i) fetch<Element>(rows[r + i + rows_ahead], d);
      for (int c = 0; c < Chains; c += 2) {
        std::ptrdiff_t const at = (d + 8 * c) * width;
        __m512 const low = _mm512_add_ps(sixteen<Element>(rows[r] + at), sixteen<Element>(rows[r + 1] + at));
        __m512 const high = _mm512_add_ps(sixteen<Element>(rows[r + 2] + at), sixteen<Element>(rows[r + 3] + at));
        add_sixteen(_mm512_add_ps(low, high), sum + c);
      }
    }
    for (int r = by_fours; r < count; ++r) {
      fetch<Element>(rows[r + rows_ahead], d);
      for (int c = 0; c < Chains; ++c) {
        __m256 const numbers = avx2_element_rows::eight<Element>(rows[r] + (d + 8 * c) * width);
        sum[c] = _mm512_add_pd(sum[c], _mm512_maskz_cvtps_pd(0xFF, numbers));
      }
    }
    for (int c = 0; c < Chains; ++c) _mm512_storeu_pd(to + d + 8 * c, sum[c]);
  }
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX512)]] static void add(std::byte const* const* rows, int count, int dims, double* to) {
    int d = 0;
    for (; d + channels <= dims; d += channels) add_block<Element, chains>(rows, count, d, to);
    for (; d + 16 <= dims; d += 16) add_block<Element, 2>(rows, count, d, to);
    add_channels_in_double<Element>(rows, count, d, dims, to);
  }
  static constexpr row_sum_kernels kernels{add<codec::f32>, add<codec::f16>, add<codec::bf16>};
};

#endif

/// The kernels for an executor's instruction set.
[[nodiscard]] inline row_sum_kernels const& row_sums_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_row_sums::kernels;
  if (simd_level == isa::avx2) return avx2_row_sums::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_row_sums::kernels;
}

}  // namespace KVPOLICY_NAMESPACE::detail
