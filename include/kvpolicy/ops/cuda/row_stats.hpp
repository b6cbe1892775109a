// SPDX-License-Identifier: Apache-2.0
// Device implementation of row_stats: one warp for each segment, so that sums have the same bits in every launch.
#pragma once

#include <kvpolicy/ops/cuda/run/entries_of.hpp>
#include <kvpolicy/ops/row_stats.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

template <class Among>
struct row_stats_kernel {
  score_view scores;
  Among among;
  statistic of;
  by_lane<float> out;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = scores.lane_of(block.index());
    int const count = scores.lanes.committed(one);
    int const* const position = scores.lanes.position.row(one);
    float const* const row = scores.row(block.index());
    score_sums all;
    for (int e = block.thread(); e < count; e += warp_size) {
      if (among(entry{one, e, count, position[e], 0})) all.add(row[e]);
    }
    all.sum = block.reduce_warp(all.sum, plus_op{});
    all.high = block.reduce_warp(all.high, highest_op{});
    all.count = block.reduce_warp(all.count, plus_op{});
    double squares = 0;
    for (int e = block.thread(); of == statistic::variance && e < count; e += warp_size) {
      if (among(entry{one, e, count, position[e], 0})) squares += all.square(row[e]);
    }
    squares = block.reduce_warp(squares, plus_op{});
    if (block.thread() == 0) *out.row(one) = all.value(of, squares);
  }
};

}  // namespace detail

/// Takes one launch.
template <kernel_backend Backend>
struct implementation<ops::row_stats_t, Backend> {
  template <class Executor, class Among>
  static void run(Executor& exec, score_view const& scores, Among const& among, statistic of,
                  by_lane<float> const& out) {
    detail::launch_warps(exec, scores, detail::row_stats_kernel<Among>{scores, among, of, out});
  }
};

}  // namespace KVPOLICY_NAMESPACE
