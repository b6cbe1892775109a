// SPDX-License-Identifier: Apache-2.0
// Pools over neighbouring entries of blocks of rows, for each instruction set. A block is that of kernels/softmax.hpp.
#pragma once

#include <kvpolicy/ops/host/kernels/softmax.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The pools of blocks of a fixed number of rows: 4, 16 or 32. Those of an entry are over the `width` entries around
/// it, of those that are there.
struct block_pools {
  /// Values become probabilities. Adds each row's sum over the entries below `counted` to row_sum [rows], and
  /// overwrites sum[e] with the sum over the rows of an entry, or adds it if `grow`.
  void (*settle)(block_view const& block, int counted, bool grow, float* row_sum, float* sum);
  /// Adds the maxima of the pools of each row of probabilities [count][rows] to row_sum [rows].
  void (*add_maxima)(float const* values, int count, int width, float* row_sum);
  /// Overwrites out[e] with the highest of an entry's pools, each the maximum or the sum of a row's probabilities,
  /// times the row's factor [rows]; or combines both if `grow`.
  void (*highest)(float const* values, int count, int width, bool maxima, float const* factor, bool grow, float* out);
};
using row_pools_kernels = by_rows<block_pools>;

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY row_pools
#include <kvpolicy/ops/host/simd/each_isa.hpp>
