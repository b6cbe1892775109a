// Rows of a block that are packed for a matrix unit, which multiplies tiles of bf16 numbers.
#pragma once

#include <cstdint>
#include <cstring>
#include <kvpolicy/core/codec.hpp>

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

  /// Packs row i of a block.
  void pack(float const* row, int dims, int i, float* to) const {
    for (int begin = 0; begin < dims; begin += dims_of_a_tile) {
      std::uint32_t part[most_parts][dims_of_a_tile] = {};
      int const count = dims - begin < dims_of_a_tile ? dims - begin : dims_of_a_tile;
      for (int d = 0; d < count; ++d) {
        float rest = row[begin + d];
        for (int p = 0; p < parts; ++p) {
          auto const bits = same_bits<std::uint32_t>(rest);
          bool const is_finite = (bits & 0x7F800000u) != 0x7F800000u;
          bool const is_nan = !is_finite && (bits & 0x007FFFFFu) != 0;
          part[p][d] = bits >> 16 | (is_nan ? 0x40u : 0u);
          rest = is_finite ? rest - same_bits<float>(bits & 0xFFFF0000u) : 0.0f;
        }
      }
      for (int p = 0; p < parts; ++p) {
        float* const tile = to + tile_at(begin, p, i) * 256 + i % 16;
        for (int pair = 0; pair < 16; ++pair) {
          std::uint32_t const first = part[p][neighbours ? 2 * pair : pair];
          std::uint32_t const second = part[p][neighbours ? 2 * pair + 1 : pair + 16];
          tile[pair * 16] = same_bits<float>(first | second << 16);
        }
      }
    }
  }

  /// The place of the pair of a number, in floats; `is_second` if it is the pair's second number.
  [[nodiscard]] std::ptrdiff_t pair_at(int d, int part, int i, bool& is_second) const {
    int const of_tile = d % dims_of_a_tile;
    is_second = neighbours ? of_tile % 2 == 1 : of_tile >= 16;
    return tile_at(d, part, i) * 256 + (neighbours ? of_tile / 2 : of_tile % 16) * 16 + i % 16;
  }

 private:
  [[nodiscard]] std::ptrdiff_t tile_at(int d, int part, int i) const {
    return (std::ptrdiff_t{d / dims_of_a_tile} * parts + part) * (rows / 16) + i / 16;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
