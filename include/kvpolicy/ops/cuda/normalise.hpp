// SPDX-License-Identifier: Apache-2.0
// Device implementation of normalise: one warp for each segment, so that sums have the same bits in every launch.
#pragma once

#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/normalise.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

struct normalise_kernel {
  normalising how;
  score_view scores;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index();
    int const count = scores.lanes.committed(scores.lane_of(segment));
    float* const row = scores.row(segment);
    score_range all;
    for (int e = block.thread(); e < count; e += warp_size) all.add(row[e]);
    all = {block.reduce_warp(all.sum, plus_op{}), block.reduce_warp(all.low, min_op{}),
           block.reduce_warp(all.high, max_op{}), block.reduce_warp(all.count, plus_op{})};
    double seconds = 0;
    if (how == normalising::z || how == normalising::softmax) {
      for (int e = block.thread(); e < count; e += warp_size) seconds += static_cast<double>(all.second(how, row[e]));
    }
    float const by = all.divisor(how, block.reduce_warp(seconds, plus_op{}));
    for (int e = block.thread(); e < count; e += warp_size) row[e] = all.normalised(how, row[e], by);
  }
};

}  // namespace detail

/// Takes one launch.
template <kernel_backend Backend>
struct implementation<ops::normalise_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, normalising how, score_view const& scores) {
    exec.launch(launch_shape{scores.segments(), detail::at_most<detail::warp_size>(exec.threads().entry), 0},
                detail::normalise_kernel{how, scores});
  }
};

}  // namespace KVPOLICY_NAMESPACE
