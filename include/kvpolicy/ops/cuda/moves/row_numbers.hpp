// SPDX-License-Identifier: Apache-2.0
// Numbers of an entry's row, and its norm.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/moves/rows.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Number d of an entry's row, without its scale.
[[nodiscard]] KVPOLICY_HD inline float number_at(row_view const& rows, lane one, int e, int d) {
  return any_element_at(rows.rows.element, rows.row(one, e) + d * rows.rows.channel_stride);
}

/// The norm of an entry's row, by one warp. Every thread of it gets the norm.
template <class Block>
[[nodiscard]] KVPOLICY_HD float norm_of(Block& block, row_view const& rows, lane one, int e) {
  double sum = 0;
  for (int d = lane_id(block); d < rows.rows.channels; d += warp_size) {
    auto const value = static_cast<double>(number_at(rows, one, e, d));
    sum += value * value;
  }
  sum = block.reduce_warp(sum, plus_op{});
  return static_cast<float>(::sqrt(sum) * ::fabs(static_cast<double>(rows.scale(one, e))));
}

}  // namespace KVPOLICY_NAMESPACE::detail
