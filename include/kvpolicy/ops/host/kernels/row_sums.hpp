// SPDX-License-Identifier: Apache-2.0
// Sums over the rows of blocks, for each instruction set. A block is that of kernels/softmax.hpp.
#pragma once

#include <kvpolicy/ops/host/kernels/softmax.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The sums of blocks of a fixed number of rows: 4, 16 or 32.
struct block_row_sums {
  /// Overwrites sum[e] with the sum of the rows' probabilities of an entry and squares[e] with that of their squares,
  /// or adds to what is there if `grow`, and adds that of -p ln(p + 1e-10) to entropy[e].
  void (*moments)(block_view const& block, bool grow, float* sum, float* squares, float* entropy);
  /// Adds to out[e] what the first `rows` values of an entry sum to, of their absolute values or of their squares.
  void (*add_norms)(float const* values, int count, int rows, bool squares, float* out);
};
using row_sums_kernels = by_rows<block_row_sums>;

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY row_sums
#include <kvpolicy/ops/host/simd/each_isa.hpp>
