// SPDX-License-Identifier: Apache-2.0
// Blocks of query rows, how a row is packed for the kernel that multiplies it with keys, and the state of the softmax.
#pragma once

#include <algorithm>
#include <cstdint>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/host/kernels/products.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// Reduces `value` into `into`; the first value of a series replaces it.
inline void fold(float& into, float value, reduction how, bool first) {
  if (first) {
    into = value;
  } else if (how == reduction::max) {
    into = !(into >= value) && into == into ? value : into;  // NaN propagates from either side
  } else {
    into += value;
  }
}

/// A block of packed query rows, and the state of their softmax.
struct row_block {
  float* packed = nullptr;
  int rows = 0;
  block_products const* products = nullptr;
  block_softmax const* softmax = nullptr;
  int visible[most_rows] = {};
  float scale[most_rows] = {};
  float lse[most_rows] = {};
  float row_max[most_rows] = {};
  float sum[most_rows] = {};
  float sink[most_rows] = {};  ///< a logit that is in the softmax and belongs to no entry, or `no_sink`

  static constexpr float no_sink = -std::numeric_limits<float>::infinity();

  /// Begins the softmax of every row: only the sink has been visible.
  void begin_softmax() {
    std::copy_n(sink, most_rows, row_max);
    for (int r = 0; r < most_rows; ++r) sum[r] = sink[r] == no_sink ? 0.0f : 1.0f;
  }

  /// Sets the number of rows to 4, 16 or 32. Not all of them need be used.
  void set_rows(isa simd_level, int count) {
    rows = count;
    products = &logits_of_isa[simd_level][count];
    softmax = &softmax_of_isa[simd_level][count];
  }
};

/// The query rows of one lane: `count` rows of each query head, from `begin` on.
struct row_range {
  int begin = 0;
  int count = 0;
  int group = 1;
};

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
    case product_kernel::amx_f16:
      return block.products->pack_for_amx({block.rows, 3, false}, row, dims, i, block.packed);
    case product_kernel::amx_bf16:
      return block.products->pack_for_amx({block.rows, 1, true}, row, dims, i, block.packed);
    case product_kernel::amx_bf16_parts:
      return block.products->pack_for_amx({block.rows, 3, true}, row, dims, i, block.packed);
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
