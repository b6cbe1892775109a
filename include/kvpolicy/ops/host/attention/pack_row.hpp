// SPDX-License-Identifier: Apache-2.0
// How a query row is packed for the kernel that multiplies it with keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/ops/host/attention/row_block.hpp>

namespace KVPOLICY_NAMESPACE::detail {

inline float nearest_bf16(float value) {
  std::byte rounded[2];
  store(codec::bf16, value, rounded);
  return kvpolicy::load(codec::bf16, rounded);
}
/// Two neighbouring elements, each rounded to bf16, as the bits of one float.
inline float as_bf16_pair(float first, float second) {
  return same_bits<float>((same_bits<std::uint32_t>(nearest_bf16(first)) >> 16) |
                          same_bits<std::uint32_t>(nearest_bf16(second)));
}
inline float bf16_pair(float const* row, int d) { return as_bf16_pair(row[d], row[d + 1]); }
/// The rounding errors of the two elements, rounded to bf16 too.
inline float bf16_rest(float const* row, int d) {
  return as_bf16_pair(row[d] - nearest_bf16(row[d]), row[d + 1] - nearest_bf16(row[d + 1]));
}

/// Packs a row as row i of a block, in the layout of the kernel.
inline void pack_row(product_kernel by, float const* row, int dims, int i, row_block const& block) {
  switch (by) {
    case product_kernel::rows_interleaved:
      for (int d = 0; d < dims; ++d) block.packed[std::ptrdiff_t{d} * block.rows + i] = row[d];
      return;
    case product_kernel::tiles_f16:
      return block.products->pack_tiles({block.rows, 3, false}, row, dims, i, block.packed);
    case product_kernel::tiles_bf16:
      return block.products->pack_tiles({block.rows, 1, true}, row, dims, i, block.packed);
    case product_kernel::tiles_bf16_parts:
      return block.products->pack_tiles({block.rows, 3, true}, row, dims, i, block.packed);
    case product_kernel::rows:
    case product_kernel::rows_f16:
    case product_kernel::rows_bf16:
      std::copy_n(row, dims, block.packed + std::ptrdiff_t{i} * dims);
      return;
    case product_kernel::four_dims:
      for (int d = 0; d < dims; ++d) block.packed[d / 4 * 16 + i * 4 + d % 4] = row[d];
      return;
    case product_kernel::rows_interleaved_bf16:
      for (int d = 0; d < dims; d += 2) block.packed[std::ptrdiff_t{d} / 2 * block.rows + i] = bf16_pair(row, d);
      return;
    case product_kernel::four_dims_bf16:
      for (int d = 0; d < dims; d += 2) block.packed[d / 8 * 16 + i * 4 + d / 2 % 4] = bf16_pair(row, d);
      return;
    case product_kernel::four_dims_bf16_parts:
      for (int d = 0; d < dims; d += 2) {
        float* const to = block.packed + d / 8 * 32 + i * 4 + d / 2 % 4;
        to[0] = bf16_pair(row, d);
        to[16] = bf16_rest(row, d);
      }
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
