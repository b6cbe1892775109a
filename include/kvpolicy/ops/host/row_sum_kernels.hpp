// Sums of rows of f32, f16 and bf16 elements in double, for each instruction set.
//
// Every number is added to its sum in the order of the rows, so all instruction sets give the same bits.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int rows_ahead = 4;

/// to[d] = ((to[d] + rows[0][d]) + rows[1][d]) + ..., of `count` rows of `dims` contiguous elements each. The rows may
/// begin at any address. The `rows_ahead` rows after them may be prefetched.
struct row_sum_kernels {
  using function = void (*)(std::byte const* const* rows, int count, int dims, double* to);
  function f32 = nullptr;
  function f16 = nullptr;
  function bf16 = nullptr;

  [[nodiscard]] function of(codec element) const {
    return element == codec::f32 ? f32 : element == codec::f16 ? f16 : bf16;
  }
};

/// Adds the channels from `first` on, one by one.
template <codec Element>
inline void add_channels_in_double(std::byte const* const* rows, int count, int first, int dims, double* to) {
  constexpr std::ptrdiff_t width = bytes_of(Element);
  for (int r = 0; r < count; ++r) {
    for (int d = first; d < dims; ++d) to[d] += static_cast<double>(load(Element, rows[r] + d * width));
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
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline void add_four(std::byte const* from, __m256d& sum) {
    if constexpr (Element == codec::f32) {
      sum = _mm256_add_pd(sum, _mm256_cvtps_pd(_mm_loadu_ps(reinterpret_cast<float const*>(from))));
    } else {
      __m128i const raw = _mm_loadl_epi64(reinterpret_cast<__m128i const*>(from));
      if constexpr (Element == codec::f16) {
        sum = _mm256_add_pd(sum, _mm256_cvtps_pd(_mm_cvtph_ps(raw)));
      } else {
        sum = _mm256_add_pd(sum, _mm256_cvtps_pd(_mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), raw))));
      }
    }
  }
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX2)]] static void add(std::byte const* const* rows, int count, int dims, double* to) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    int d = 0;
    for (; d + channels <= dims; d += channels) {
      __m256d sum[chains];
      for (int c = 0; c < chains; ++c) sum[c] = _mm256_loadu_pd(to + d + 4 * c);
      for (int r = 0; r < count; ++r) {
        if (d == 0) fetch<Element>(rows[r + rows_ahead], dims);
        for (int c = 0; c < chains; ++c) add_four<Element>(rows[r] + (d + 4 * c) * width, sum[c]);
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
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void add_eight(std::byte const* from,
                                                                                    __m512d& sum) {
    if constexpr (Element == codec::f32) {
      sum = _mm512_add_pd(sum, _mm512_maskz_cvtps_pd(0xFF, _mm256_loadu_ps(reinterpret_cast<float const*>(from))));
    } else {
      __m128i const raw = _mm_loadu_si128(reinterpret_cast<__m128i const*>(from));
      if constexpr (Element == codec::f16) {
        sum = _mm512_add_pd(sum, _mm512_maskz_cvtps_pd(0xFF, _mm256_cvtph_ps(raw)));
      } else {
        __m256i const bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16);
        sum = _mm512_add_pd(sum, _mm512_maskz_cvtps_pd(0xFF, _mm256_castsi256_ps(bits)));
      }
    }
  }
  /// Adds the channels from `d` on, eight at a time.
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX512)]] static void add_rest(std::byte const* const* rows, int count, int d, int dims,
                                                        double* to) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    for (; d + 8 <= dims; d += 8) {
      __m512d sum = _mm512_loadu_pd(to + d);
      for (int r = 0; r < count; ++r) add_eight<Element>(rows[r] + d * width, sum);
      _mm512_storeu_pd(to + d, sum);
    }
    add_channels_in_double<Element>(rows, count, d, dims, to);
  }
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX512)]] static void add(std::byte const* const* rows, int count, int dims, double* to) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    int d = 0;
    for (; d + channels <= dims; d += channels) {
      __m512d sum[chains];
      for (int c = 0; c < chains; ++c) sum[c] = _mm512_loadu_pd(to + d + 8 * c);
      for (int r = 0; r < count; ++r) {
        fetch<Element>(rows[r + rows_ahead], d);
        for (int c = 0; c < chains; ++c) add_eight<Element>(rows[r] + (d + 8 * c) * width, sum[c]);
      }
      for (int c = 0; c < chains; ++c) _mm512_storeu_pd(to + d + 8 * c, sum[c]);
    }
    if (d < dims) add_rest<Element>(rows, count, d, dims, to);
  }
  /// Adds the numbers of sixteen bf16 channels: a word of four bytes has an even one and an odd one.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void add_pairs(std::byte const* from,
                                                                                    __m512d& even, __m512d& odd) {
    __m256i const raw = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(from));
    __m256 const low = _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
    __m256 const high = _mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32(-0x10000)));
    even = _mm512_add_pd(even, _mm512_maskz_cvtps_pd(0xFF, low));
    odd = _mm512_add_pd(odd, _mm512_maskz_cvtps_pd(0xFF, high));
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void add_bf16(std::byte const* const* rows, int count, int dims, double* to) {
    __m512i const evens = _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0),
                  odds = _mm512_set_epi64(15, 13, 11, 9, 7, 5, 3, 1);
    __m512i const first = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0),
                  last = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    int d = 0;
    for (; d + channels <= dims; d += channels) {
      __m512d sum[chains];
      for (int c = 0; c < chains; c += 2) {
        __m512d const a = _mm512_loadu_pd(to + d + 8 * c), b = _mm512_loadu_pd(to + d + 8 * c + 8);
        sum[c] = _mm512_permutex2var_pd(a, evens, b);
        sum[c + 1] = _mm512_permutex2var_pd(a, odds, b);
      }
      for (int r = 0; r < count; ++r) {
        fetch<codec::bf16>(rows[r + rows_ahead], d);
        for (int c = 0; c < chains; c += 2) add_pairs(rows[r] + 2 * std::ptrdiff_t{d + 8 * c}, sum[c], sum[c + 1]);
      }
      for (int c = 0; c < chains; c += 2) {
        _mm512_storeu_pd(to + d + 8 * c, _mm512_permutex2var_pd(sum[c], first, sum[c + 1]));
        _mm512_storeu_pd(to + d + 8 * c + 8, _mm512_permutex2var_pd(sum[c], last, sum[c + 1]));
      }
    }
    if (d < dims) add_rest<codec::bf16>(rows, count, d, dims, to);
  }
  static constexpr row_sum_kernels kernels{add<codec::f32>, add<codec::f16>, add_bf16};
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
