// SPDX-License-Identifier: Apache-2.0
// Device implementation of add_shares: one warp for each lane, so that sums have the same bits in every launch.
#pragma once

#include <kvpolicy/ops/add_shares.hpp>
#include <kvpolicy/ops/cuda/run/entries_of.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

struct add_shares_kernel {
  score_view mass;
  by_lane<float const> weights;
  by_lane<float> to;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = mass.lane_of(block.index());
    int const count = mass.lanes.committed(one);
    float const *const given = mass.row(block.index()), *const weight = weights.row(one);
    shared_sums sums;
    for (int e = block.thread(); e < count; e += warp_size) sums.add(given[e], weight[e]);
    sums = {block.reduce_warp(sums.given, plus_op{}), block.reduce_warp(sums.weighted, plus_op{})};
    for (int e = block.thread(); e < count; e += warp_size) to.row(one)[e] += sums.share(given[e], weight[e]);
  }
};

}  // namespace detail

/// Takes one launch.
template <kernel_backend Backend>
struct implementation<ops::add_shares_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, score_view const& mass, by_lane<float const> const& weights,
                  by_lane<float> const& to) {
    detail::launch_warps(exec, mass, detail::add_shares_kernel{mass, weights, to});
  }
};

}  // namespace KVPOLICY_NAMESPACE
