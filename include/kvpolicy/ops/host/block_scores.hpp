// SPDX-License-Identifier: Apache-2.0
// Host implementation of block_scores: a worker reduces the blocks of a segment.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/block_scores.hpp>
#include <kvpolicy/ops/host/executor.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::block_scores_t, host> {
  static void run(host_executor& exec, score_blocks const& blocks, score_view const& scores) {
    exec.for_each(scores.segments(), [&](int segment, int) {
      int const count = scores.lanes.committed(scores.lane_of(segment));
      if (count < blocks.size) return;
      for (int e = 0; e < count; e += std::min(blocks.size, count - e)) {
        detail::reduce_block(scores.row(segment), e, e + std::min(blocks.size, count - e), blocks.how);
      }
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
