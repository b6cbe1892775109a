// SPDX-License-Identifier: Apache-2.0
// Device implementation of count_cover: one warp for each segment, so that sums have the same bits in every launch.
#pragma once

#include <kvpolicy/ops/count_cover.hpp>
#include <kvpolicy/ops/cuda/run/entries_of.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

template <class Among, class Limit>
struct count_cover_kernel {
  score_view scores;
  Among among;
  Limit limit;
  by_lane<float> out;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = scores.lane_of(block.index());
    int const count = scores.lanes.committed(one);
    int const* const position = scores.lanes.position.row(one);
    float const* const row = scores.row(block.index());
    auto const each = [&](auto const& visit) {
      for (int e = block.thread(); e < count; e += warp_size) {
        if (among(entry{one, e, count, position[e], 0})) visit(row[e]);
      }
    };
    cover_search<4> search{.limit = limit(one)};
    bool goes_on = search.limit > 0;  // the same in all threads
    while (goes_on) {
      each([&](float score) { search.add(score); });
      for (double& sum : search.sum) sum = block.reduce_warp(sum, plus_op{});
      goes_on = search.advance();
    }
    int above = 0, equal = 0;
    each([&](float score) {
      above += score > search.score() ? 1 : 0;
      equal += score == search.score() ? 1 : 0;
    });
    above = block.reduce_warp(above, plus_op{});
    equal = block.reduce_warp(equal, plus_op{});
    if (block.thread() == 0) *out.row(one) = search.limit > 0 ? static_cast<float>(search.count(above, equal)) : 0;
  }
};

}  // namespace detail

/// Takes one launch.
template <kernel_backend Backend>
struct implementation<ops::count_cover_t, Backend> {
  template <class Executor, class Among, class Limit>
  static void run(Executor& exec, score_view const& scores, Among const& among, Limit const& limit,
                  by_lane<float> const& out) {
    detail::launch_warps(exec, scores, detail::count_cover_kernel<Among, Limit>{scores, among, limit, out});
  }
};

}  // namespace KVPOLICY_NAMESPACE
