// Sums of rows of f32, f16 and bf16 elements in float, for each instruction set.
//
// Every number is added to its sum in the order of the rows, so all instruction sets give the same bits.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/rows.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int rows_at_a_time = 8;  ///< more rows at a time are too many streams for a processor to follow

/// to[d] = ((to[d] + rows[0][d]) + rows[1][d]) + ..., of `count` rows of `dims` contiguous elements each. The rows may
/// begin at any address. With every line of a row a line of the row `ahead` at the same index is prefetched. Rows
/// `ahead` are not read.
struct element_row_kernels {
  using function = void (*)(std::byte const* const* rows, std::byte const* const* ahead, int count, int dims,
                            float* to);
  function f32 = nullptr;
  function f16 = nullptr;
  function bf16 = nullptr;
  /// to[d] = the highest of to[d] and the rows, which are floats. A NaN stays.
  function max_f32 = nullptr;
  /// to[d] += (((0 + rows[0][d]) + rows[1][d]) + ...) / divisor, of 1 to `rows_at_a_time` rows.
  using sum_function = void (*)(std::byte const* const* rows, std::byte const* const* ahead, int count, int dims,
                                float divisor, float* to);
  sum_function sum_f32 = nullptr;
  sum_function sum_f16 = nullptr;
  sum_function sum_bf16 = nullptr;
  /// Converts f16 elements to floats.
  void (*widen_f16)(std::byte const* from, int dims, float* to) = nullptr;

  [[nodiscard]] function of(codec element) const {
    return element == codec::f32 ? f32 : element == codec::f16 ? f16 : bf16;
  }
  [[nodiscard]] sum_function sum_of(codec element) const {
    return element == codec::f32 ? sum_f32 : element == codec::f16 ? sum_f16 : sum_bf16;
  }
};

/// Code for any compiler and processor.
struct portable_element_rows {
  template <codec Element>
  static void add(std::byte const* const* rows, std::byte const* const*, int count, int dims, float* to) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    for (int r = 0; r < count; ++r) {
      for (int d = 0; d < dims; ++d) to[d] += load(Element, rows[r] + d * width);
    }
  }
  template <codec Element>
  static void add_sum(std::byte const* const* rows, std::byte const* const*, int count, int dims, float divisor,
                      float* to) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    for (int d = 0; d < dims; ++d) to[d] += sum_at<Element>(rows, count, d * width) / divisor;
  }
  template <codec Element>
  static float sum_at(std::byte const* const* rows, int count, std::ptrdiff_t byte) {
    float sum = 0;
    for (int r = 0; r < count; ++r) sum += load(Element, rows[r] + byte);
    return sum;
  }
  static void max_f32(std::byte const* const* rows, std::byte const* const*, int count, int dims, float* to) {
    for (int r = 0; r < count; ++r) {
      for (int d = 0; d < dims; ++d) to[d] = higher(to[d], load(codec::f32, rows[r] + 4 * std::ptrdiff_t{d}));
    }
  }
  static float higher(float a, float b) {
    float const larger = a > b ? a : b;  // b, if b is NaN
    return a != a ? a : larger;
  }
  static void widen_f16(std::byte const* from, int dims, float* to) { load_row(codec::f16, from, 2, dims, to); }
  static constexpr element_row_kernels kernels{
      add<codec::f32>,     add<codec::f16>,     add<codec::bf16>,     max_f32,
      add_sum<codec::f32>, add_sum<codec::f16>, add_sum<codec::bf16>, widen_f16};
};

#if defined(__x86_64__)

struct avx2_element_rows {
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX2)]] static __m256 eight(std::byte const* from) {
    if constexpr (Element == codec::f32) {
      return _mm256_loadu_ps(reinterpret_cast<float const*>(from));
    } else {
      __m128i const raw = _mm_loadu_si128(reinterpret_cast<__m128i const*>(from));
      if constexpr (Element == codec::f16) return _mm256_cvtph_ps(raw);
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
    }
  }
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX2)]] static void add(std::byte const* const* rows, std::byte const* const* ahead, int count,
                                                 int dims, float* to) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    int d = 0;
    for (; d + 32 <= dims; d += 32) {
      __m256 a = _mm256_loadu_ps(to + d), b = _mm256_loadu_ps(to + d + 8);
      __m256 c = _mm256_loadu_ps(to + d + 16), e = _mm256_loadu_ps(to + d + 24);
      for (int r = 0; r < count; ++r) {
        std::byte const* const from = rows[r] + d * width;
        for (int byte = 0; byte < 32 * width; byte += 64) prefetch_here(ahead[r] + d * width + byte);
        a = _mm256_add_ps(a, eight<Element>(from));
        b = _mm256_add_ps(b, eight<Element>(from + 8 * width));
        c = _mm256_add_ps(c, eight<Element>(from + 16 * width));
        e = _mm256_add_ps(e, eight<Element>(from + 24 * width));
      }
      _mm256_storeu_ps(to + d, a), _mm256_storeu_ps(to + d + 8, b);
      _mm256_storeu_ps(to + d + 16, c), _mm256_storeu_ps(to + d + 24, e);
    }
    for (; d < dims; ++d) {
      for (int r = 0; r < count; ++r) to[d] += load(Element, rows[r] + d * width);
    }
  }
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX2)]] static void add_sum(std::byte const* const* rows, std::byte const* const* ahead,
                                                     int count, int dims, float divisor, float* to) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    __m256 const divisors = _mm256_set1_ps(divisor);
    int d = 0;
    for (; d + 32 <= dims; d += 32) {
      __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
      for (int r = 0; r < count; ++r) {
        std::byte const* const from = rows[r] + d * width;
        for (int byte = 0; byte < 32 * width; byte += 64) prefetch_here(ahead[r] + d * width + byte);
        for (int v = 0; v < 4; ++v) sums[v] = _mm256_add_ps(sums[v], eight<Element>(from + 8 * width * v));
      }
      for (int v = 0; v < 4; ++v) {
        __m256 const share = divisor == 1 ? sums[v] : _mm256_div_ps(sums[v], divisors);
        _mm256_storeu_ps(to + d + 8 * v, _mm256_add_ps(_mm256_loadu_ps(to + d + 8 * v), share));
      }
    }
    for (; d < dims; ++d) to[d] += portable_element_rows::sum_at<Element>(rows, count, d * width) / divisor;
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void max_f32(std::byte const* const* rows, std::byte const* const* ahead,
                                                     int count, int dims, float* to) {
    int d = 0;
    for (; d + 8 <= dims; d += 8) {
      __m256 all = _mm256_loadu_ps(to + d);
      for (int r = 0; r < count; ++r) {
        if (d % floats_of_a_line == 0) prefetch_here(ahead[r] + 4 * std::ptrdiff_t{d});
        __m256 const larger = _mm256_max_ps(all, eight<codec::f32>(rows[r] + 4 * std::ptrdiff_t{d}));
        all = _mm256_blendv_ps(larger, all, _mm256_cmp_ps(all, all, _CMP_UNORD_Q));
      }
      _mm256_storeu_ps(to + d, all);
    }
    for (; d < dims; ++d) {
      for (int r = 0; r < count; ++r)
        to[d] = portable_element_rows::higher(to[d], load(codec::f32, rows[r] + 4 * std::ptrdiff_t{d}));
    }
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void widen_f16(std::byte const* from, int dims, float* to) {
    int d = 0;
    for (; d + 8 <= dims; d += 8) _mm256_storeu_ps(to + d, eight<codec::f16>(from + 2 * std::ptrdiff_t{d}));
    load_row(codec::f16, from + 2 * std::ptrdiff_t{d}, 2, dims - d, to + d);
  }
  static constexpr element_row_kernels kernels{
      add<codec::f32>,     add<codec::f16>,     add<codec::bf16>,     max_f32,
      add_sum<codec::f32>, add_sum<codec::f16>, add_sum<codec::bf16>, widen_f16};
};

struct avx512_element_rows {
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX512)]] static __m512 sixteen(std::byte const* from, __mmask16 there) {
    if constexpr (Element == codec::f32) {
      return _mm512_maskz_loadu_ps(there, from);
    } else {
      __m256i const raw = _mm256_maskz_loadu_epi16(there, from);
      if constexpr (Element == codec::f16) return _mm512_maskz_cvtph_ps(there, raw);
      return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(there, _mm512_maskz_cvtepu16_epi32(there, raw), 16));
    }
  }
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX512)]] static void add(std::byte const* const* rows, std::byte const* const* ahead,
                                                   int count, int dims, float* to) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    constexpr __mmask16 all = 0xFFFF;
    int d = 0;
    for (; d + 64 <= dims; d += 64) {
      __m512 a = _mm512_loadu_ps(to + d), b = _mm512_loadu_ps(to + d + 16);
      __m512 c = _mm512_loadu_ps(to + d + 32), e = _mm512_loadu_ps(to + d + 48);
      for (int r = 0; r < count; ++r) {
        std::byte const* const from = rows[r] + d * width;
        for (int byte = 0; byte < 64 * width; byte += 64) prefetch_here(ahead[r] + d * width + byte);
        a = _mm512_add_ps(a, sixteen<Element>(from, all));
        b = _mm512_add_ps(b, sixteen<Element>(from + 16 * width, all));
        c = _mm512_add_ps(c, sixteen<Element>(from + 32 * width, all));
        e = _mm512_add_ps(e, sixteen<Element>(from + 48 * width, all));
      }
      _mm512_storeu_ps(to + d, a), _mm512_storeu_ps(to + d + 16, b);
      _mm512_storeu_ps(to + d + 32, c), _mm512_storeu_ps(to + d + 48, e);
    }
    for (; d < dims; d += 16) {
      auto const there = static_cast<__mmask16>(dims - d < 16 ? (1u << (dims - d)) - 1 : all);
      __m512 sum = _mm512_maskz_loadu_ps(there, to + d);
      for (int r = 0; r < count; ++r) sum = _mm512_add_ps(sum, sixteen<Element>(rows[r] + d * width, there));
      _mm512_mask_storeu_ps(to + d, there, sum);
    }
  }
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX512)]] static void add_sum(std::byte const* const* rows, std::byte const* const* ahead,
                                                       int count, int dims, float divisor, float* to) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    constexpr __mmask16 all = 0xFFFF;
    __m512 const divisors = _mm512_set1_ps(divisor);
    int d = 0;
    for (; d + 64 <= dims; d += 64) {
      __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
      for (int r = 0; r < count; ++r) {
        std::byte const* const from = rows[r] + d * width;
        for (int byte = 0; byte < 64 * width; byte += 64) prefetch_here(ahead[r] + d * width + byte);
        for (int v = 0; v < 4; ++v) sums[v] = _mm512_add_ps(sums[v], sixteen<Element>(from + 16 * width * v, all));
      }
      for (int v = 0; v < 4; ++v) {
        __m512 const share = divisor == 1 ? sums[v] : _mm512_div_ps(sums[v], divisors);
        _mm512_storeu_ps(to + d + 16 * v, _mm512_add_ps(_mm512_loadu_ps(to + d + 16 * v), share));
      }
    }
    for (; d < dims; d += 16) {
      auto const there = static_cast<__mmask16>(dims - d < 16 ? (1u << (dims - d)) - 1 : all);
      __m512 sum = _mm512_setzero_ps();
      for (int r = 0; r < count; ++r) sum = _mm512_add_ps(sum, sixteen<Element>(rows[r] + d * width, there));
      __m512 const before = _mm512_maskz_loadu_ps(there, to + d);
      _mm512_mask_storeu_ps(to + d, there, _mm512_add_ps(before, _mm512_div_ps(sum, divisors)));
    }
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void max_f32(std::byte const* const* rows, std::byte const* const* ahead,
                                                       int count, int dims, float* to) {
    constexpr __mmask16 every = 0xFFFF;
    int d = 0;
    for (; d + 64 <= dims; d += 64) {  // four chains hide the latency of comparing and taking
      __m512 some[4];
      for (int v = 0; v < 4; ++v) some[v] = _mm512_loadu_ps(to + d + 16 * v);
      for (int r = 0; r < count; ++r) {
        std::byte const* const from = rows[r] + 4 * std::ptrdiff_t{d};
        for (int v = 0; v < 4; ++v) {
          prefetch_here(ahead[r] + 4 * std::ptrdiff_t{d} + 64 * std::ptrdiff_t{v});
          __m512 const next = _mm512_loadu_ps(from + 64 * std::ptrdiff_t{v});
          some[v] = _mm512_mask_max_ps(some[v], _mm512_cmp_ps_mask(some[v], some[v], _CMP_ORD_Q), some[v], next);
        }
      }
      for (int v = 0; v < 4; ++v) _mm512_storeu_ps(to + d + 16 * v, some[v]);
    }
    for (; d < dims; d += 32) {
      int const left = dims - d;
      auto const first = static_cast<__mmask16>(left < 16 ? (1u << left) - 1 : every);
      auto const second = static_cast<__mmask16>(left >= 32 ? every : left > 16 ? (1u << (left - 16)) - 1 : 0u);
      __m512 a = _mm512_maskz_loadu_ps(first, to + d), b = _mm512_maskz_loadu_ps(second, to + d + 16);
      for (int r = 0; r < count; ++r) {
        std::byte const* const from = rows[r] + 4 * std::ptrdiff_t{d};
        a = _mm512_mask_max_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_ORD_Q), a, sixteen<codec::f32>(from, first));
        b = _mm512_mask_max_ps(b, _mm512_cmp_ps_mask(b, b, _CMP_ORD_Q), b, sixteen<codec::f32>(from + 64, second));
      }
      _mm512_mask_storeu_ps(to + d, first, a);
      _mm512_mask_storeu_ps(to + d + 16, second, b);
    }
  }
  static constexpr element_row_kernels kernels{
      add<codec::f32>,     add<codec::f16>,     add<codec::bf16>,     max_f32,
      add_sum<codec::f32>, add_sum<codec::f16>, add_sum<codec::bf16>, avx2_element_rows::widen_f16};
};

#endif

/// The kernels for an executor's instruction set.
[[nodiscard]] inline element_row_kernels const& element_rows_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_element_rows::kernels;
  if (simd_level == isa::avx2) return avx2_element_rows::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_element_rows::kernels;
}

/// Converts `dims` contiguous elements to floats, without a scale.
inline void widen_row(isa simd_level, codec element, std::byte const* from, int dims, float* to) {
  if (element == codec::f16) return element_rows_for(simd_level).widen_f16(from, dims, to);
  load_row(element, from, bytes_of(element), dims, to);
}

}  // namespace KVPOLICY_NAMESPACE::detail
