// SPDX-License-Identifier: Apache-2.0
// Device implementation of map.
#pragma once

#include <kvpolicy/ops/cuda/run/entries_of.hpp>
#include <kvpolicy/ops/map.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

template <class Function>
struct map_kernel {
  score_view scores;
  Function f;

  KVPOLICY_HD void operator()(int segment, ordinal_range of, int first, int step) const {
    lane const this_lane = scores.lane_of(segment);
    int const count = scores.lanes.committed(this_lane);
    int const* const position = scores.lanes.position.row(this_lane);
    float* const row = scores.row(segment);
    for (int e = of.begin + first; e < of.end; e += step) {
      entry const at{this_lane, e, count, position[e], 0};
      row[e] = f(row[e], at);
    }
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::map_t, Backend> {
  template <class Executor, class Function>
  static void run(Executor& exec, score_view const& scores, Function const& f) {
    detail::launch_entries(exec, scores, detail::map_kernel<Function>{scores, f});
  }
};

}  // namespace KVPOLICY_NAMESPACE
