// SPDX-License-Identifier: Apache-2.0
// Products of keys and blocks of query rows, for each instruction set.
//
// A block has 4, 16 or 32 rows. With 16 or 32 rows a vector holds one channel of `width` rows, and each channel of a
// key is broadcast (`rows_interleaved`): no step adds across a vector. With 4 rows a vector holds several channels of
// one row (`rows`), or four channels of each row (`four_dims`).
#pragma once

#include <cstddef>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/ops/host/kernels/softmax.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// A block of rows that are packed for a matrix unit, which multiplies tiles of bf16 numbers. For each 32 dims, for
/// each part of a number, and for each 16 rows there is one tile of [16 pairs][16 rows]. Rows are padded with zeros to
/// a multiple of 32 dims.
///
/// A number is split into `parts` bf16 numbers: each is what the parts before it leave, truncated. Three of them have
/// the 24 bits of a float, and two those of an f16. Keys are split alike when they are read.
struct amx_layout {
  static constexpr int dims_of_a_tile = 32;
  static constexpr int most_parts = 3;

  int rows = 0;
  int parts = 1;
  bool neighbours = true;  ///< a pair is of neighbours in a row; otherwise it is of two dims that are 16 apart

  [[nodiscard]] static constexpr int tiles(int dims) { return (dims + dims_of_a_tile - 1) / dims_of_a_tile; }
  /// The memory of a packed block, in floats.
  [[nodiscard]] static constexpr std::ptrdiff_t floats(int dims, int rows) {
    return std::ptrdiff_t{tiles(dims)} * dims_of_a_tile * rows * most_parts / 2;
  }

  /// The place of the pair of a number, in floats; `is_second` if it is the pair's second number.
  [[nodiscard]] std::ptrdiff_t pair_at(int d, int part, int i, bool& is_second) const {
    int const of_tile = d % dims_of_a_tile;
    is_second = neighbours ? of_tile % 2 == 1 : of_tile >= 16;
    return tile_at(d, part, i) * 256 + (neighbours ? of_tile / 2 : of_tile % 16) * 16 + i % 16;
  }
  /// The number of the tile of these 32 dims, of this part, and of this row.
  [[nodiscard]] std::ptrdiff_t tile_at(int d, int part, int i) const {
    return (std::ptrdiff_t{d / dims_of_a_tile} * parts + part) * (rows / 16) + i / 16;
  }
};

/// Keys that are multiplied in one call. It is a multiple of the step of every kernel.
inline constexpr int keys_of_a_tile = 24;

/// The kernel that multiplies keys and rows, which determines how rows are packed in floats, or in pairs of bf16.
enum class product_kernel {
  rows_interleaved,       ///< [dims][rows]
  rows_interleaved_bf16,  ///< bf16 keys and rows: [dims / 2][rows] pairs
  amx_bf16,               ///< bf16 keys and rows, with a matrix unit: `amx_layout`, which `pack_for_amx` packs
  amx_bf16_parts,         ///< bf16 keys and float rows
  amx_f16,                ///< f16 keys and float rows
  rows,                   ///< few rows: [row][dims]
  rows_f16,               ///< f16 keys; a vector's numbers divide dims
  rows_bf16,
  four_dims,            ///< few rows: [dims / 4][row][4]; 4 divides dims
  four_dims_bf16,       ///< bf16 keys and rows: [dims / 8][row][4 pairs]; 8 divides dims
  four_dims_bf16_parts  ///< bf16 keys and float rows, split into two bf16 numbers: [dims / 8][2][row][4 pairs]
};

inline constexpr int num_products = static_cast<int>(product_kernel::four_dims_bf16_parts) + 1;

/// The softmax of a block of `most_rows` rows, whose logits are computed twice instead of being stored.
struct swept_rows {
  void const* packed = nullptr;
  int const* visible = nullptr;  ///< the entries that a row sees
  int all_see = 0;               ///< the entries that all rows see
  unsigned there = 0;            ///< a bit for each row; those that only fill up the block have none
  float* row_max = nullptr;      ///< the maximum of a row's logits so far
  float* sum = nullptr;  ///< the sum of e^(logit - maximum) so far; for the second pass, 1 / that of all entries
};

/// A tile of `count` keys.
struct swept_keys {
  void const* const* keys = nullptr;  ///< the keys of the next tile follow, and may be prefetched
  int first = 0;                      ///< the entry of the first key
  int count = 0;
  int dims = 0;
  float scale = 0;
  void* copy = nullptr;   ///< memory for the keys, padded with zeros to a multiple of 32 dims
  float* mass = nullptr;  ///< null in the first pass; the second pass adds each key's mass to it
};

/// The kernels for blocks of a fixed number of rows: 4, 16 or 32. A kernel that an instruction set lacks, or that would
/// not be faster there, is null.
struct block_products {
  /// out[k][r] = scale * key k . row r. A whole step of keys is read, and the keys of the next tile may be prefetched.
  using function = void (*)(void const* const* keys, int count, int dims, void const* packed, float scale, float* out);
  function by[num_products];
  /// Like `rows_interleaved`, with the same sums, but for one key at a time instead of a whole step.
  function interleaved_single_key;
  int numbers_of_a_vector;
  /// With a matrix unit: tiles are multiplied between `begin_amx` and `end_amx`, which set up and release a
  /// thread's tile registers. `sweep_bf16` is one of two passes of some blocks of `most_rows` rows over a tile of keys.
  void (*pack_for_amx)(amx_layout const& layout, float const* row, int dims, int i, float* to);
  void (*begin_amx)();
  void (*end_amx)();
  void (*sweep_bf16)(swept_keys const& of, swept_rows const* rows, int blocks);

  [[nodiscard]] constexpr function of(product_kernel which) const { return by[static_cast<int>(which)]; }
  constexpr void set(product_kernel which, function is) { by[static_cast<int>(which)] = is; }
  [[nodiscard]] function interleaved() const { return of(product_kernel::rows_interleaved); }
};
using logits_kernels = by_rows<block_products>;

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY logits
#define KVPOLICY_OWN_TABLE
#include <kvpolicy/ops/host/simd/each_isa.hpp>

#if defined(__x86_64__) && !defined(KVPOLICY_COMPILED_KERNELS)

// A region of its own, for products of pairs of bf16 only.
#define KVPOLICY_AVX512_BF16 KVPOLICY_AVX512 ",avx512bf16"
#define KVPOLICY_PAIRS_OF_BF16
KVPOLICY_BEGIN_REGION(KVPOLICY_AVX512_BF16)
namespace KVPOLICY_NAMESPACE::detail::avx512_bf16 {
#include <kvpolicy/ops/host/simd/avx512.kernel.hpp>
// Then what is written over them.
#include <kvpolicy/ops/host/simd/common.kernel.hpp>
// Then the kernels, and the products of pairs.
#include <kvpolicy/ops/host/kernels/logits.kernel.hpp>
}  // namespace KVPOLICY_NAMESPACE::detail::avx512_bf16
KVPOLICY_END_REGION
#undef KVPOLICY_PAIRS_OF_BF16

#endif
