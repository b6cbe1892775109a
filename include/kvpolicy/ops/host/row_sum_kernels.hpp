// Sums of rows of f32, f16 and bf16 elements in double, for each instruction set.
//
// 16-bit numbers of sixteen rows are added in float first, because the conversion to double takes longer than they do.
// Their significands have 8 or 11 bits, so these sums are exact unless one number is some 500 times as large as
// another. All instruction sets add in the same order, and give the same bits.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/ops/host/element_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int rows_ahead = 8;

/// Where rows are. `offset` has `rows_ahead` elements more than there are rows: those of rows to prefetch.
struct row_places {
  std::byte const* from;
  std::int64_t const* offset;

  [[nodiscard]] std::byte const* operator[](int row) const { return from + offset[row]; }
};

/// Adds `count` rows of `dims` contiguous elements each, in their order. With `more` they are added to the sums in
/// `to`, which are overwritten otherwise. Rows of f32 are added one by one; of 16-bit elements every sixteen rows
/// become one sum first, and so do the last ones, if they are fewer. The rows may begin at any address. The
/// `rows_ahead` rows after them may be prefetched.
struct row_sum_kernels {
  using function = void (*)(row_places const& rows, int count, int dims, bool more, double* to);
  function f32 = nullptr;
  function f16 = nullptr;
  function bf16 = nullptr;

  [[nodiscard]] function of(codec element) const {
    return element == codec::f32 ? f32 : element == codec::f16 ? f16 : bf16;
  }
};

/// The number of rows that are added in float before their sum becomes double.
template <codec Element>
inline constexpr int rows_in_float = Element == codec::f32 ? 1 : 16;

/// Adds the channels from `first` on, one by one.
template <codec Element>
inline void add_channels_in_double(row_places const& rows, int count, int first, int dims, bool more, double* to) {
  auto const number = [rows](int r, int d) { return load(Element, rows[r] + d * std::ptrdiff_t{bytes_of(Element)}); };
  if (!more) std::fill(to + first, to + dims, 0.0);
  for (int begin = 0; begin < count; begin += rows_in_float<Element>) {
    int const end = std::min(begin + rows_in_float<Element>, count);
    for (int d = first; d < dims; ++d) {
      float sum = number(begin, d);
      for (int r = begin + 1; r < end; ++r) sum += number(r, d);
      to[d] += static_cast<double>(sum);
    }
  }
}

/// Code for any compiler and processor.
struct portable_row_sums {
  template <codec Element>
  KVPOLICY_VECTORIZED static void add(row_places const& rows, int count, int dims, bool more, double* to) {
    add_channels_in_double<Element>(rows, count, 0, dims, more, to);
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
  [[gnu::target(KVPOLICY_AVX2)]] static void add(row_places const& rows, int count, int dims, bool more, double* to) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    int d = 0;
    for (; d + channels <= dims; d += channels) {
      __m256d sum[chains];
      for (int c = 0; c < chains; ++c) sum[c] = more ? _mm256_loadu_pd(to + d + 4 * c) : _mm256_setzero_pd();
      for (int begin = 0; begin < count; begin += rows_in_float<Element>) {
        int const end = std::min(begin + rows_in_float<Element>, count);
        __m256 some[chains / 2];
        if (d == 0) fetch<Element>(rows[begin + rows_ahead], dims);
        for (int c = 0; c < chains / 2; ++c)
          some[c] = avx2_element_rows::eight<Element>(rows[begin] + (d + 8 * c) * width);
        for (int r = begin + 1; r < end; ++r) {
          if (d == 0) fetch<Element>(rows[r + rows_ahead], dims);
          for (int c = 0; c < chains / 2; ++c)
            some[c] = _mm256_add_ps(some[c], avx2_element_rows::eight<Element>(rows[r] + (d + 8 * c) * width));
        }
        for (int c = 0; c < chains / 2; ++c) add_eight(some[c], sum + 2 * c);
      }
      for (int c = 0; c < chains; ++c) _mm256_storeu_pd(to + d + 4 * c, sum[c]);
    }
    add_channels_in_double<Element>(rows, count, d, dims, more, to);
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
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void add_sixteen(__m512 numbers, __m512d* sum) {
    __m256 const low = _mm512_maskz_extractf32x8_ps(0xFF, numbers, 0),
                 high = _mm512_maskz_extractf32x8_ps(0xFF, numbers, 1);
    sum[0] = _mm512_add_pd(sum[0], _mm512_maskz_cvtps_pd(0xFF, low));
    sum[1] = _mm512_add_pd(sum[1], _mm512_maskz_cvtps_pd(0xFF, high));
  }
  /// Sixteen channels of a row in float for each two of `Chains` sums in double. A row may be added to another.
  template <codec Element, int Chains>
  struct float_row {
    [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline explicit float_row(std::byte const* row) {
      for (int c = 0; c < Chains / 2; ++c) of[c] = sixteen(row, c);
    }
    [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline void add(std::byte const* row) {
      for (int c = 0; c < Chains / 2; ++c) of[c] = _mm512_add_ps(of[c], sixteen(row, c));
    }
    [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline void add_to(__m512d* sum) const {
      for (int c = 0; c < Chains / 2; ++c) add_sixteen(of[c], sum + 2 * c);
    }

   private:
    [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512 sixteen(std::byte const* row, int c) {
      return avx512_element_rows::sixteen<Element>(row + c * std::ptrdiff_t{16 * bytes_of(Element)}, 0xFFFF);
    }
    __m512 of[static_cast<std::size_t>(Chains) / 2];
  };
  /// The same of bf16 channels. A word of a row has an even channel and the odd one behind it. One operation makes a
  /// float of either, so that the channels are put in order once for all rows.
  template <int Chains>
    requires(Chains % 4 == 0)
  struct float_row<codec::bf16, Chains> {
    [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline explicit float_row(std::byte const* row) {
      for (int c = 0; c < Chains / 4; ++c) of[c] = pairs(row, c);
    }
    [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline void add(std::byte const* row) {
      for (int c = 0; c < Chains / 4; ++c) {
        channel_pairs const more = pairs(row, c);
        of[c].even = _mm512_add_ps(of[c].even, more.even);
        of[c].odd = _mm512_add_ps(of[c].odd, more.odd);
      }
    }
    [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline void add_to(__m512d* sum) const {
      __m512i const low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      __m512i const high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
      for (int c = 0; c < Chains / 4; ++c) {
        add_sixteen(_mm512_permutex2var_ps(of[c].even, low, of[c].odd), sum + 4 * c);
        add_sixteen(_mm512_permutex2var_ps(of[c].even, high, of[c].odd), sum + 4 * c + 2);
      }
    }

   private:
    struct channel_pairs {
      __m512 even, odd;
    };
    [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline channel_pairs pairs(std::byte const* row,
                                                                                           int c) {
      __m512i words = _mm512_loadu_si512(row + c * std::ptrdiff_t{64});
      once(words);
      __m512i const odd = _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
      return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xFFFF, words, 16)), _mm512_castsi512_ps(odd)};
    }
    channel_pairs of[static_cast<std::size_t>(Chains) / 4];
  };
  /// Adds sixteen channels for each two of `Chains` sums, from `d` on.
  template <codec Element, int Chains>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void add_block(row_places const& rows, int count,
                                                                                    int d, bool more, double* to) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    __m512d sum[static_cast<std::size_t>(Chains)];
    for (int c = 0; c < Chains; ++c) sum[c] = more ? _mm512_loadu_pd(to + d + 8 * c) : _mm512_setzero_pd();
    for (int begin = 0; begin < count; begin += rows_in_float<Element>) {
      fetch<Element>(rows[begin + rows_ahead], d);
      if constexpr (Element == codec::f32) {
        for (int c = 0; c < Chains; ++c) {
          __m256 const numbers = _mm256_loadu_ps(reinterpret_cast<float const*>(rows[begin]) + d + 8 * c);
          sum[c] = _mm512_add_pd(sum[c], _mm512_maskz_cvtps_pd(0xFF, numbers));
        }
      } else {
        int const end = std::min(begin + rows_in_float<Element>, count);
        float_row<Element, Chains> some(rows[begin] + d * width);
        for (int r = begin + 1; r < end; ++r) {
          fetch<Element>(rows[r + rows_ahead], d);
          some.add(rows[r] + d * width);
        }
        some.add_to(sum);
      }
    }
    for (int c = 0; c < Chains; ++c) _mm512_storeu_pd(to + d + 8 * c, sum[c]);
  }
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX512)]] static void add(row_places const& rows, int count, int dims, bool more, double* to) {
    int d = 0;
    for (; d + channels <= dims; d += channels) add_block<Element, chains>(rows, count, d, more, to);
    for (; d + 16 <= dims; d += 16) add_block<Element, 2>(rows, count, d, more, to);
    add_channels_in_double<Element>(rows, count, d, dims, more, to);
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
