// Products of few rows on AVX-512, and the choice of the kernels of an executor.
#pragma once

#include <kvpolicy/ops/host/amx_kernels.hpp>
#include <kvpolicy/ops/host/block_kernels.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>

namespace KVPOLICY_NAMESPACE::detail {

#if defined(__x86_64__)

/// Products of few rows and f16 keys, which are converted as they are read. A vector has sixteen numbers of one row.
struct avx512_f16 {
  static constexpr int keys_of_a_step = 4;
  static constexpr __mmask16 all = 0xFFFF;  ///< without a mask, g++ 12 warns inside its own header

  [[gnu::target(KVPOLICY_AVX512)]] static void rows(void const* const* keys, int count, int dims, void const* packed,
                                                    float scale, float* out) {
    __m512 const factor = _mm512_set1_ps(scale);
    for (int k = 0; k < count; k += keys_of_a_step) {
      int const there = std::min(keys_of_a_step, count - k);
      __m512 const sums = products(keys + k, dims, static_cast<float const*>(packed),
                                   std::make_integer_sequence<int, keys_of_a_step * few_rows>{});
      _mm512_mask_storeu_ps(out + k * few_rows, static_cast<__mmask16>((1u << few_rows * there) - 1),
                            _mm512_mul_ps(sums, factor));
    }
  }

  /// Adds numbers of each of four vectors: each quarter of the result has one sum of each.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512 quarters(__m512 const* of) {
    __m512 const a =
        _mm512_add_ps(_mm512_maskz_unpacklo_ps(all, of[0], of[1]), _mm512_maskz_unpackhi_ps(all, of[0], of[1]));
    __m512 const b =
        _mm512_add_ps(_mm512_maskz_unpacklo_ps(all, of[2], of[3]), _mm512_maskz_unpackhi_ps(all, of[2], of[3]));
    return _mm512_add_ps(_mm512_maskz_shuffle_ps(all, a, b, 0x44), _mm512_maskz_shuffle_ps(all, a, b, 0xEE));
  }

 private:
  /// The products of four keys and four rows, as [key][row].
  template <int... I>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512 products(void const* const* keys, int dims,
                                                                                     float const* packed,
                                                                                     std::integer_sequence<int, I...>) {
    __m512 acc[] = {(static_cast<void>(I), _mm512_setzero_ps())...};
    tile_ahead next{keys + keys_of_a_tile, 2 * dims};
    for (std::ptrdiff_t d = 0; d < dims; d += 16) {
      __m512 const row[] = {_mm512_loadu_ps(packed + d), _mm512_loadu_ps(packed + dims + d),
                            _mm512_loadu_ps(packed + std::ptrdiff_t{2} * dims + d),
                            _mm512_loadu_ps(packed + std::ptrdiff_t{3} * dims + d)};
      __m512 key{};
      ((I % 8 == 0 ? next.fetch() : static_cast<void>(0), key = I % 4 == 0 ? sixteen(keys[I / 4], d) : key,
        acc[I] = _mm512_fmadd_ps(key, row[I % 4], acc[I])),
       ...);
    }
    __m512 const by_key[] = {quarters(acc), quarters(acc + 4), quarters(acc + 8), quarters(acc + 12)};
    __m512 const two[] = {halves(by_key[0], by_key[1]), halves(by_key[2], by_key[3])};
    return _mm512_add_ps(_mm512_maskz_shuffle_f32x4(all, two[0], two[1], 0x88),
                         _mm512_maskz_shuffle_f32x4(all, two[0], two[1], 0xDD));
  }

  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512 sixteen(void const* key, std::ptrdiff_t d) {
    auto const* const from = reinterpret_cast<__m256i const*>(static_cast<std::byte const*>(key) + 2 * d);
    return _mm512_maskz_cvtph_ps(all, _mm256_loadu_si256(from));
  }

  /// Adds the halves of two vectors: the lower half of the result is of the first.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512 halves(__m512 first, __m512 second) {
    return _mm512_add_ps(_mm512_maskz_shuffle_f32x4(all, first, second, 0x44),
                         _mm512_maskz_shuffle_f32x4(all, first, second, 0xEE));
  }
};

/// Products of few rows. A vector has four numbers (or pairs) of each row, and is multiplied by the same four numbers
/// of a key, which are repeated four times.
struct avx512_quads {
  using blocks = avx512_blocks<few_rows>;
  static constexpr int keys_of_a_step = 8;
  static constexpr __mmask16 all = 0xFFFF;  ///< without a mask, g++ 12 warns inside its own header

  template <int... I>
  [[gnu::target(KVPOLICY_AVX512)]] static void products(void const* const* keys, int dims, float const* packed,
                                                        __m512* sums, std::integer_sequence<int, I...>) {
    float const* const key[] = {static_cast<float const*>(keys[I])...};
    __m512 acc[] = {(static_cast<void>(I), _mm512_setzero_ps())...};
    tile_ahead next{keys + keys_of_a_tile, 4 * dims};
    for (std::ptrdiff_t d = 0; d < dims; d += 4) {
      __m512 const rows = _mm512_loadu_ps(packed + 4 * d);
      ((I % 4 == 0 ? next.fetch() : static_cast<void>(0),
        acc[I] = _mm512_fmadd_ps(_mm512_maskz_broadcast_f32x4(all, _mm_loadu_ps(key[I] + d)), rows, acc[I])),
       ...);
    }
    ((sums[I] = acc[I]), ...);
  }

  template <int Parts, int... I>
  [[gnu::target(KVPOLICY_AVX512 ",avx512bf16")]] static void pairs(void const* const* keys, int dims,
                                                                   std::uint32_t const* packed, __m512* sums,
                                                                   std::integer_sequence<int, I...>) {
    std::byte const* const key[] = {static_cast<std::byte const*>(keys[I])...};
    __m512 acc[] = {(static_cast<void>(I), _mm512_setzero_ps())...};
    __m512 rest[] = {(static_cast<void>(I), _mm512_setzero_ps())...};
    tile_ahead next{keys + keys_of_a_tile, 2 * dims};
    for (std::ptrdiff_t d = 0; d < dims; d += 8) {
      __m512i of[] = {(static_cast<void>(I), _mm512_setzero_si512())...};
      ((I % 4 == 0 ? next.fetch() : static_cast<void>(0),
        of[I] = _mm512_maskz_broadcast_i32x4(all, _mm_loadu_si128(reinterpret_cast<__m128i const*>(key[I] + 2 * d)))),
       ...);
      auto const rows = __builtin_bit_cast(__m512bh, _mm512_loadu_si512(packed + 2 * d * Parts));
      ((acc[I] = _mm512_dpbf16_ps(acc[I], __builtin_bit_cast(__m512bh, of[I]), rows)), ...);
      if constexpr (Parts == 2) {
        auto const left = __builtin_bit_cast(__m512bh, _mm512_loadu_si512(packed + 2 * d * Parts + 16));
        ((rest[I] = _mm512_dpbf16_ps(rest[I], __builtin_bit_cast(__m512bh, of[I]), left)), ...);
      }
    }
    if constexpr (Parts == 2) ((acc[I] = with_rest(acc[I], rest[I])), ...);
    ((sums[I] = acc[I]), ...);
  }

  /// Adds the sum of a row's remainder only where the sum is a number: an infinite key times a zero of the remainder
  /// would make it NaN.
  [[gnu::target(KVPOLICY_AVX512)]] static __m512 with_rest(__m512 sum, __m512 rest) {
    constexpr int nan_or_infinite = 0x99;
    __mmask16 const not_finite = _mm512_fpclass_ps_mask(sum, nan_or_infinite);
    return _mm512_mask_add_ps(sum, static_cast<__mmask16>(~not_finite), sum, rest);
  }

  /// Stores the sums of four keys, quad by quad, as [key][row]; only the first `there` are stored.
  [[gnu::target(KVPOLICY_AVX512)]] static void store(__m512 const* sums, int there, float scale, float* out) {
    __m512 const by_row = avx512_f16::quarters(sums);
    __m512i const order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512 const by_key = _mm512_mul_ps(_mm512_maskz_permutexvar_ps(all, order, by_row), _mm512_set1_ps(scale));
    _mm512_mask_storeu_ps(out, static_cast<__mmask16>((1u << few_rows * (there < 4 ? there : 4)) - 1), by_key);
  }

  [[gnu::target(KVPOLICY_AVX512)]] static void quads(void const* const* keys, int count, int dims, void const* packed,
                                                     float scale, float* out) {
    for (int k = 0; k < count; k += keys_of_a_step) {
      __m512 sums[keys_of_a_step];
      products(keys + k, dims, static_cast<float const*>(packed), sums,
               std::make_integer_sequence<int, keys_of_a_step>{});
      store(sums, count - k, scale, out + k * few_rows);
      if (count - k > 4) store(sums + 4, count - k - 4, scale, out + (k + 4) * few_rows);
    }
  }

  template <int Parts>
  [[gnu::target(KVPOLICY_AVX512 ",avx512bf16")]] static void quads_of(void const* const* keys, int count, int dims,
                                                                      void const* packed, float scale, float* out) {
    constexpr int step = Parts == 1 ? 12 : keys_of_a_step;  // enough chains of products to hide their latency
    static_assert(keys_of_a_tile % step == 0);
    for (int k = 0; k < count; k += step) {
      __m512 sums[static_cast<std::size_t>(step)];
      pairs<Parts>(keys + k, dims, static_cast<std::uint32_t const*>(packed), sums,
                   std::make_integer_sequence<int, step>{});
      for (int four = 0; four < step && k + four < count; four += 4) {
        store(sums + four, count - k - four, scale, out + (k + four) * few_rows);
      }
    }
  }

  static constexpr block_kernels kernels = [] {
    block_kernels made = blocks::kernels;
    made.quads = quads;
    made.rows_f16 = avx512_f16::rows;
    return made;
  }();
  static constexpr block_kernels kernels_bf16 = [] {
    block_kernels made = blocks::kernels;
    made.quads = quads;
    made.rows_f16 = avx512_f16::rows;
    made.quads_bf16 = quads_of<1>;
    made.quads_split = quads_of<2>;
    return made;
  }();
};

#endif

/// The kernels of blocks of `Rows` rows for an executor's instruction set.
template <int Rows>
[[nodiscard]] block_kernels const& blocks_for(isa simd_level) {
#if defined(__x86_64__)
  if constexpr (Rows == few_rows) {
    if (simd_level >= isa::avx512_bf16) return avx512_quads::kernels_bf16;
    if (simd_level == isa::avx512) return avx512_quads::kernels;
  } else {
    if (simd_level == isa::amx) return amx_blocks<Rows>::kernels;
    if (simd_level == isa::avx512_bf16) return avx512_blocks<Rows>::kernels_bf16;
    if (simd_level == isa::avx512) return avx512_blocks<Rows>::kernels;
  }
  if (simd_level == isa::avx2) return avx2_blocks<Rows>::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_blocks<Rows>::kernels;
}

}  // namespace KVPOLICY_NAMESPACE::detail
