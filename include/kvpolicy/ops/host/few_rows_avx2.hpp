// Products of few rows on AVX2.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/ops/host/element_rows.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/row_blocks.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <utility>

namespace KVPOLICY_NAMESPACE::detail {

/// out[k][r] = scale * key k . row r, for keys of one element type, which are converted as they are read. A vector has
/// eight numbers of one row. Three keys and four rows are multiplied at once: their sums, the keys and one row fill the
/// sixteen registers.
template <codec Element>
struct avx2_few_rows {
  static constexpr int keys_of_a_step = 3;
  static_assert(keys_of_a_tile % keys_of_a_step == 0);

  /// Like block_kernels::logits. `packed` is [row][dims]; 8 divides dims.
  [[gnu::target(KVPOLICY_AVX2)]] static void products(void const* const* keys, int count, int dims, void const* packed,
                                                      float scale, float* out) {
    __m128 const factor = _mm_set1_ps(scale);
    for (int k = 0; k < count; k += keys_of_a_step) {
      __m128 sums[keys_of_a_step];
      step(keys + k, dims, static_cast<float const*>(packed), sums,
           std::make_integer_sequence<int, keys_of_a_step * few_rows>{});
      for (int i = 0; i < keys_of_a_step && k + i < count; ++i) {
        _mm_storeu_ps(out + (k + i) * few_rows, _mm_mul_ps(sums[i], factor));
      }
    }
  }

 private:
  static constexpr int width = bytes_of(Element);

  template <int... I>
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline void step(void const* const* keys, int dims,
                                                                             float const* rows, __m128* sums,
                                                                             std::integer_sequence<int, I...>) {
    std::byte const* const key[] = {static_cast<std::byte const*>(keys[0]), static_cast<std::byte const*>(keys[1]),
                                    static_cast<std::byte const*>(keys[2])};
    __m256 acc[] = {(static_cast<void>(I), _mm256_setzero_ps())...};
    tile_ahead next{keys + keys_of_a_tile, width * dims};
    for (std::ptrdiff_t d = 0; d < dims; d += 8) {
      if (d * width % 64 == 0) {  // a line of each key
        next.fetch();
        next.fetch();
        next.fetch();
      }
      __m256 const of[] = {avx2_element_rows::eight<Element>(key[0] + d * width),
                           avx2_element_rows::eight<Element>(key[1] + d * width),
                           avx2_element_rows::eight<Element>(key[2] + d * width)};
      __m256 row{};
      ((row = I % keys_of_a_step == 0 ? _mm256_loadu_ps(rows + I / keys_of_a_step * dims + d) : row,
        acc[I] = _mm256_fmadd_ps(of[I % keys_of_a_step], row, acc[I])),
       ...);
    }
    for (int k = 0; k < keys_of_a_step; ++k) {
      sums[k] = across(acc[k], acc[k + keys_of_a_step], acc[k + 2 * keys_of_a_step], acc[k + 3 * keys_of_a_step]);
    }
  }

  /// The sum of each of four vectors.
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline __m128 across(__m256 a, __m256 b, __m256 c,
                                                                                 __m256 d) {
    __m256 const all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail

#endif
