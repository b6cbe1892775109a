// SPDX-License-Identifier: Apache-2.0
// Rows of a block that are packed for a matrix unit, which multiplies tiles of bf16 numbers.
#pragma once

#include <cstddef>
#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// A block of packed rows: for each 32 dims, for each part of a number, and for each 16 rows there is one tile of
/// [16 pairs][16 rows]. Rows are padded with zeros to a multiple of 32 dims.
///
/// A number is split into `parts` bf16 numbers: each is what the parts before it leave, truncated. Three of them have
/// the 24 bits of a float, and two those of an f16. Keys are split alike when they are read.
struct row_tiles {
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

}  // namespace KVPOLICY_NAMESPACE::detail
