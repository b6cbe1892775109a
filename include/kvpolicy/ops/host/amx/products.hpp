// SPDX-License-Identifier: Apache-2.0
// Products of blocks of rows with AMX, the matrix unit of Intel's processors.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <kvpolicy/ops/host/kernels/logits.hpp>

namespace KVPOLICY_NAMESPACE::detail {

#if defined(__x86_64__)

#define KVPOLICY_AMX KVPOLICY_AVX512 ",avx512bf16,amx-tile,amx-bf16"
#define KVPOLICY_AMX_OP [[gnu::target(KVPOLICY_AMX), gnu::always_inline]] inline

/// The shapes of the eight tile registers: 0 and 1 are products of sixteen keys, 2 and 3 of the other eight keys of a
/// tile of keys; 4 and 5 are those keys; 6 and 7 are rows.
struct amx_shapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 8, 8, 16, 8, 16, 16};
};
static_assert(sizeof(amx_shapes) == 64 && keys_of_a_tile == 24);

/// Products of a tile of 16-bit keys and a block of packed rows. Tile registers must be set up before. Of the products
/// of a key's and a row's parts those that are below 2^-21 of the whole are left out.
///
/// Keys of floats would be three parts, and their tiles are 1.5 times as fast as multiply-adds of floats where
/// everything is in the first-level cache; a window's keys are not, and then they gain nothing.
template <int Rows, codec Element, int RowParts>
struct amx_products {
  static constexpr int columns = Rows / 16;
  static constexpr std::size_t key_parts = Element == codec::f16 ? 2 : 1;
  static constexpr int bytes = 2;
  static constexpr int dims_of_a_tile = amx_layout::dims_of_a_tile;
  using part_of_keys = std::byte[keys_of_a_tile][64];  ///< of 32 dims
  using parts_of_keys = part_of_keys[key_parts];

  [[gnu::target(KVPOLICY_AMX)]] static void all(void const* const* keys, int count, int dims, void const* packed,
                                                float scale, float* out) {
    alignas(64) parts_of_keys parts[2];
    alignas(64) float products[static_cast<std::size_t>(keys_of_a_tile * Rows)];
    tile_prefetcher next{keys + keys_of_a_tile, bytes * dims};
    auto const* rows = static_cast<std::byte const*>(packed);
    clear();
    split(keys, 0, dims, next, parts[0]);
    int now = 0;
    for (int d = 0; d < dims; d += dims_of_a_tile, rows += 1024 * columns * RowParts, now = 1 - now) {
      if (d + dims_of_a_tile < dims) split(keys, d + dims_of_a_tile, dims, next, parts[1 - now]);
      keep_order(parts);
      multiply(parts[now][0], rows);
      if constexpr (key_parts > 1) multiply<1>(parts[now][1], rows);
      keep_order(parts);
    }
    store(products);
    scale_all(products, keys, count, dims, packed, scale, out);
  }

  /// Sets the products to 0.
  KVPOLICY_AMX_OP static void clear() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }

  /// Adds the products of one part of the keys.
  template <int KeyPart = 0>
  KVPOLICY_AMX_OP static void multiply(part_of_keys const& part, std::byte const* rows) {
    _tile_loadd(4, part[0], 64);
    _tile_loadd(5, part[16], 64);
    for (int p = 0; p < RowParts && p + KeyPart < amx_layout::most_parts; ++p) {
      std::byte const* const tiles = rows + 1024 * columns * p;
      _tile_loadd(6, tiles, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (columns == 2) {
        _tile_loadd(7, tiles + 1024, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }

  /// Writes the products: [keys][rows].
  KVPOLICY_AMX_OP static void store(float* to) {
    _tile_stored(0, to, 4 * Rows);
    _tile_stored(2, to + 16 * Rows, 4 * Rows);
    if constexpr (columns == 2) {
      _tile_stored(1, to + 16, 4 * Rows);
      _tile_stored(3, to + 16 * Rows + 16, 4 * Rows);
    }
  }

  /// Splits 32 dims of key k into parts, or `left` if those are fewer.
  KVPOLICY_AMX_OP static void split(std::byte const* from, int left, int k, parts_of_keys& parts) {
    auto const some = left < 32 ? (__mmask32{1} << left) - 1 : ~__mmask32{0};
    if constexpr (Element == codec::bf16) {
      _mm512_store_si512(parts[0][k], _mm512_maskz_loadu_epi16(some, from));
    } else {
      __m512 a = _mm512_maskz_cvtph_ps(0xFFFF, _mm256_maskz_loadu_epi16(static_cast<__mmask16>(some), from));
      __m512 b = _mm512_maskz_cvtph_ps(0xFFFF, _mm256_maskz_loadu_epi16(static_cast<__mmask16>(some >> 16), from + 32));
      __m512i const upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
      for (std::size_t p = 0; p < key_parts; ++p) {
        __m512i const bits = _mm512_castps_si512(b);
        __m512i const lower = _mm512_maskz_srli_epi32(0xFFFF, _mm512_castps_si512(a), 16);
        _mm512_store_si512(parts[p][k], _mm512_ternarylogic_epi32(bits, upper, lower, 0xEA));  // (bits & upper) | lower
        a = _mm512_sub_ps(a, _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), upper)));
        b = _mm512_sub_ps(b, _mm512_castsi512_ps(_mm512_and_si512(bits, upper)));
      }
    }
  }

 private:
  /// Keeps a compiler from moving writes of parts over reads of them: intrinsics of g++ 12 do not say that they read.
  KVPOLICY_OP static void keep_order(parts_of_keys (&parts)[2]) { __asm__ __volatile__("" ::"r"(&parts) : "memory"); }

  /// Splits dims [d, d + 32) of all keys, or those that are left, into parts.
  KVPOLICY_AMX_OP static void split(void const* const* keys, int d, int dims, tile_prefetcher& next,
                                    parts_of_keys& parts) {
    for (int k = 0; k < keys_of_a_tile; ++k) {
      next.next();
      split(static_cast<std::byte const*>(keys[k]) + std::ptrdiff_t{bytes} * d, dims - d, k, parts);
    }
  }

  /// Writes the products times `scale`. Parts of an infinite number, and an infinite number times a part that is zero,
  /// give NaN: products that are not finite are computed again without splitting the key.
  KVPOLICY_AMX_OP static void scale_all(float const* products, void const* const* keys, int count, int dims,
                                        void const* packed, float scale, float* out) {
    constexpr int nan_or_infinite = 0x99;
    __m512 const factor = _mm512_set1_ps(scale);
    for (int k = 0; k < count; ++k) {
      for (int c = 0; c < columns; ++c) {
        __m512 sums = _mm512_load_ps(products + k * Rows + c * 16);
        if constexpr (key_parts > 1 || RowParts > 1) {
          __mmask16 const wrong = _mm512_fpclass_ps_mask(sums, nan_or_infinite);
          if (wrong != 0) sums = _mm512_mask_mov_ps(sums, wrong, whole(keys[k], dims, packed, c));
        }
        _mm512_storeu_ps(out + k * Rows + c * 16, _mm512_mul_ps(sums, factor));
      }
    }
  }

  /// The products of one key and sixteen rows.
  [[gnu::target(KVPOLICY_AMX), gnu::noinline]] static __m512 whole(void const* key, int dims, void const* packed,
                                                                   int column) {
    amx_layout const layout{Rows, RowParts, Element == codec::bf16};
    auto const* const packed_rows = static_cast<float const*>(packed);
    __m512 sums = _mm512_setzero_ps();
    for (int d = 0; d < dims; ++d) {
      __m512 row = _mm512_setzero_ps();
      for (int part = RowParts - 1; part >= 0; --part) {
        bool is_second = false;
        __m512i const pairs = _mm512_loadu_si512(packed_rows + layout.pair_at(d, part, 16 * column, is_second));
        __m512i const bits = is_second ? _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)))
                                       : _mm512_maskz_slli_epi32(0xFFFF, pairs, 16);
        row = _mm512_add_ps(row, _mm512_castsi512_ps(bits));
      }
      float const number = load(Element, static_cast<std::byte const*>(key) + std::ptrdiff_t{bytes} * d);
      sums = _mm512_fmadd_ps(_mm512_set1_ps(number), row, sums);
    }
    return sums;
  }
};

/// Packs rows for tiles, one by one.
struct amx_rows {
  static constexpr int nan = 0x81;
  static constexpr int nan_or_infinite = 0x99;

  [[gnu::target(KVPOLICY_AMX)]] static void pack(amx_layout const& layout, float const* row, int dims, int i,
                                                 float* to) {
    __m512i const upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    __m512i const index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i const even = _mm512_add_epi32(index, index);
    __m512i const odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (int d = 0; d < dims; d += amx_layout::dims_of_a_tile) {
      int const left = dims - d;
      auto const some = left < 32 ? (__mmask32{1} << left) - 1 : ~__mmask32{0};
      __m512 const a = _mm512_maskz_loadu_ps(static_cast<__mmask16>(some), row + d);
      __m512 const b = _mm512_maskz_loadu_ps(static_cast<__mmask16>(some >> 16), row + d + 16);
      __m512 first = layout.neighbours ? _mm512_permutex2var_ps(a, even, b) : a;
      __m512 second = layout.neighbours ? _mm512_permutex2var_ps(a, odd, b) : b;
      for (int p = 0; p < layout.parts; ++p) {
        __m512i const pairs =
            _mm512_or_si512(_mm512_maskz_srli_epi32(0xFFFF, quiet(first), 16), _mm512_and_si512(quiet(second), upper));
        alignas(64) float of_row[16];
        _mm512_store_si512(of_row, pairs);
        float* const tile = to + layout.tile_at(d, p, i) * 256 + i % 16;
        for (int pair = 0; pair < 16; ++pair) tile[pair * 16] = of_row[pair];
        first = rest_of(first, upper);
        second = rest_of(second, upper);
      }
    }
  }

 private:
  /// Sets a bit of NaNs that is among the upper half, so that no NaN is truncated to infinity.
  KVPOLICY_AMX_OP static __m512i quiet(__m512 value) {
    __m512i const bits = _mm512_castps_si512(value);
    return _mm512_mask_or_epi32(bits, _mm512_fpclass_ps_mask(value, nan), bits, _mm512_set1_epi32(0x00400000));
  }
  /// What truncation leaves of a number; nothing of NaN and of infinity.
  KVPOLICY_AMX_OP static __m512 rest_of(__m512 value, __m512i upper) {
    __m512 const part = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(value), upper));
    auto const finite = static_cast<__mmask16>(~_mm512_fpclass_ps_mask(value, nan_or_infinite));
    return _mm512_maskz_sub_ps(finite, value, part);
  }
};

#endif

}  // namespace KVPOLICY_NAMESPACE::detail
