// SPDX-License-Identifier: Apache-2.0
// Device implementation of block_scores: one thread for each block, which adds in the order of the entries.
#pragma once

#include <kvpolicy/ops/block_scores.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Handles block i % most of segment i / most.
struct block_scores_body {
  score_blocks blocks;
  score_view scores;
  int most;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    auto const segment = static_cast<int>(i / most);
    std::int64_t const begin = i % most * blocks.size;
    int const count = scores.lanes.committed(scores.lane_of(segment));
    if (count < blocks.size || begin >= count) return;
    std::int64_t const end = begin + blocks.size < count ? begin + blocks.size : count;
    reduce_block(scores.row(segment), static_cast<int>(begin), static_cast<int>(end), blocks.how);
  }
};

}  // namespace detail

/// Takes one launch and no scratch.
template <kernel_backend Backend>
struct implementation<ops::block_scores_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, score_blocks const& blocks, score_view const& scores) {
    int const most = scores.lanes.capacity / blocks.size + 1;
    detail::launch_each(exec, std::int64_t{scores.segments()} * most, detail::block_scores_body{blocks, scores, most});
  }
};

}  // namespace KVPOLICY_NAMESPACE
