// SPDX-License-Identifier: Apache-2.0
// Two passes of rows over a lane's keys, which add up the attention that each key receives and store no logits.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/attention/lane_logits.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// Adds to mass[e] the probabilities that rows [0, rows) give to each entry e. fill(block, first, count) fills a block
/// with rows [first, first + count). As many blocks as can be packed share a pass, which ends where none of their rows
/// sees more. Needs `logits.has_sweeps()`.
template <class Fill>
void add_mass_by_sweeps(lane_logits& logits, Fill const& fill, int rows, float* mass) {
  for (int begin = 0; begin < rows; begin += lane_logits::storage * most_rows) {
    row_block block[lane_logits::storage];
    swept_rows swept[lane_logits::storage];
    int blocks = 0;
    int end = 0;
    for (int first = begin; first < rows && blocks < lane_logits::storage; first += most_rows, ++blocks) {
      int const count = std::min(most_rows, rows - first);
      row_block& one = block[blocks];
      one = logits.block_storage(blocks);
      one.set_rows(logits.simd_level(), most_rows);
      fill(one, first, count);
      one.begin_softmax();
      end = std::max(end, *std::max_element(one.visible, one.visible + count));
      unsigned const there = std::numeric_limits<unsigned>::max() >> (most_rows - count);
      swept[blocks] = {one.packed, one.visible, *std::min_element(one.visible, one.visible + count),
                       there,      one.row_max, one.sum};
    }
    logits.sweep(block[0], swept, blocks, end, nullptr);
    for (int b = 0; b < blocks; ++b) {
      for (int r = 0; r < most_rows; ++r) block[b].sum[r] = block[b].visible[r] > 0 ? 1.0f / block[b].sum[r] : 0.0f;
    }
    logits.sweep(block[0], swept, blocks, end, mass);
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
