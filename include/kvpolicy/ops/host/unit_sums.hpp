// Sums of one row and sixteen hidden units of a gate, whose weights are read once, where they are.
//
// A tile of weights is turned in registers, so that a vector has one column of all units. A unit's products are added
// in the order of the columns, by multiply-adds as in the products of blocks (with AVX2, compilers fuse both alike): a
// row alone has the same bits as among others.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The weights of sixteen units: `columns` numbers each, which are `stride` floats apart.
struct unit_weights {
  static constexpr int units = 16;
  float const* of_unit;
  std::int64_t stride;
  int columns;
  float const* next;  ///< what is read after these weights, with the same stride
};

/// out[u] = sum over c of row[c] * weights of unit u [c].
using unit_sums = void (*)(unit_weights const& weights, float const* row, float* out);

#if defined(__x86_64__)

inline constexpr int columns_ahead = 192;  ///< how far weights are prefetched: that many floats of sixteen units

/// Prefetches the lines of all units that are read `columns_ahead` columns after column `c`.
[[gnu::always_inline]] inline void fetch_ahead(unit_weights const& weights, int c) {
  int const ahead = c + columns_ahead;
  float const* const at = ahead < weights.columns ? weights.of_unit + ahead : weights.next + (ahead - weights.columns);
  for (int u = 0; u < unit_weights::units; ++u) __builtin_prefetch(at + u * weights.stride, 0, 3);
}

struct avx512_unit_sums {
  static constexpr __mmask16 all = 0xFFFF;
  static constexpr __mmask8 both = 0xFF;

  /// Reads four columns of units 0, 4, 8 and 12 after `from`, one in each quarter.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void read(float const* from, std::int64_t stride,
                                                                               __m512& to) {
    to = _mm512_maskz_broadcast_f32x4(0x000F, _mm_loadu_ps(from));
    to = _mm512_mask_broadcast_f32x4(to, 0x00F0, _mm_loadu_ps(from + 4 * stride));
    to = _mm512_mask_broadcast_f32x4(to, 0x0F00, _mm_loadu_ps(from + 8 * stride));
    to = _mm512_mask_broadcast_f32x4(to, 0xF000, _mm_loadu_ps(from + 12 * stride));
  }
  /// Adds the products of four columns, one after another.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void add_four(float const* from,
                                                                                   std::int64_t stride,
                                                                                   float const* row, __m512& sum) {
    __m512 a, b, c, d;
    read(from, stride, a);
    read(from + stride, stride, b);
    read(from + 2 * stride, stride, c);
    read(from + 3 * stride, stride, d);
    __m512d const low = _mm512_castps_pd(_mm512_maskz_unpacklo_ps(all, a, b));
    __m512d const high = _mm512_castps_pd(_mm512_maskz_unpackhi_ps(all, a, b));
    __m512d const next_low = _mm512_castps_pd(_mm512_maskz_unpacklo_ps(all, c, d));
    __m512d const next_high = _mm512_castps_pd(_mm512_maskz_unpackhi_ps(all, c, d));
    __m512d const columns[4] = {
        _mm512_maskz_unpacklo_pd(both, low, next_low), _mm512_maskz_unpackhi_pd(both, low, next_low),
        _mm512_maskz_unpacklo_pd(both, high, next_high), _mm512_maskz_unpackhi_pd(both, high, next_high)};
    for (int i = 0; i < 4; ++i) sum = _mm512_fmadd_ps(_mm512_castpd_ps(columns[i]), _mm512_set1_ps(row[i]), sum);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void sums(unit_weights const& weights, float const* row, float* out) {
    std::int64_t const stride = weights.stride;
    __m512 sum = _mm512_setzero_ps();
    int c = 0;
    for (; c + 16 <= weights.columns; c += 16) {
      fetch_ahead(weights, c);
      for (int i = c; i < c + 16; i += 4) add_four(weights.of_unit + i, stride, row + i, sum);
    }
    for (; c < weights.columns; ++c) {
      float column[unit_weights::units];
      for (int u = 0; u < unit_weights::units; ++u) column[u] = weights.of_unit[u * stride + c];
      sum = _mm512_fmadd_ps(_mm512_loadu_ps(column), _mm512_set1_ps(row[c]), sum);
    }
    _mm512_storeu_ps(out, sum);
  }
};

struct avx2_unit_sums {
  /// Reads four columns of units 0 and 4 after `from`, one in each half.
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline void read(float const* from, std::int64_t stride,
                                                                             __m256& to) {
    to = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from)), _mm_loadu_ps(from + 4 * stride), 1);
  }
  /// Adds the products of four columns and eight units, one after another.
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline void add_four(float const* from, std::int64_t stride,
                                                                                 float const* row, __m256& sum) {
    __m256 a, b, c, d;
    read(from, stride, a);
    read(from + stride, stride, b);
    read(from + 2 * stride, stride, c);
    read(from + 3 * stride, stride, d);
    __m256d const low = _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
    __m256d const high = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
    __m256d const next_low = _mm256_castps_pd(_mm256_unpacklo_ps(c, d));
    __m256d const next_high = _mm256_castps_pd(_mm256_unpackhi_ps(c, d));
    __m256d const columns[4] = {_mm256_unpacklo_pd(low, next_low), _mm256_unpackhi_pd(low, next_low),
                                _mm256_unpacklo_pd(high, next_high), _mm256_unpackhi_pd(high, next_high)};
    for (int i = 0; i < 4; ++i) sum = _mm256_fmadd_ps(_mm256_castpd_ps(columns[i]), _mm256_set1_ps(row[i]), sum);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void sums(unit_weights const& weights, float const* row, float* out) {
    std::int64_t const stride = weights.stride;
    float const* const upper = weights.of_unit + 8 * stride;
    __m256 sum = _mm256_setzero_ps(), upper_sum = _mm256_setzero_ps();
    int c = 0;
    for (; c + 16 <= weights.columns; c += 16) {
      fetch_ahead(weights, c);
      for (int i = c; i < c + 16; i += 4) {
        add_four(weights.of_unit + i, stride, row + i, sum);
        add_four(upper + i, stride, row + i, upper_sum);
      }
    }
    for (; c < weights.columns; ++c) {
      float column[unit_weights::units];
      for (int u = 0; u < unit_weights::units; ++u) column[u] = weights.of_unit[u * stride + c];
      __m256 const factor = _mm256_set1_ps(row[c]);
      sum = _mm256_fmadd_ps(_mm256_loadu_ps(column), factor, sum);
      upper_sum = _mm256_fmadd_ps(_mm256_loadu_ps(column + 8), factor, upper_sum);
    }
    _mm256_storeu_ps(out, sum);
    _mm256_storeu_ps(out + 8, upper_sum);
  }
};

#endif

/// The code for an executor's instruction set; null if it has none, and weights are packed for one row as for many.
[[nodiscard]] inline unit_sums unit_sums_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_unit_sums::sums;
  if (simd_level == isa::avx2) return avx2_unit_sums::sums;
#endif
  static_cast<void>(simd_level);
  return nullptr;
}

}  // namespace KVPOLICY_NAMESPACE::detail
