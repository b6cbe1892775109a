// SPDX-License-Identifier: Apache-2.0
// The host implementation of map, which visits every entry once.
#pragma once

#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/map.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::map_t, host> {
  template <class Function>
  static void run(host_executor& exec, score_view const& scores, Function const& f) {
    exec.for_each(scores.segments(), [&](int segment, int) {
      lane const this_lane = scores.lane_of(segment);
      int const count = scores.lanes.committed(this_lane);
      int const* const position = scores.lanes.position.row(this_lane);
      float* const row = scores.row(segment);
      if constexpr (requires(lane_entries const& of) { f.in_lane(of); }) {
        auto const form = f.in_lane(lane_entries{
            .lane = this_lane, .count = count, .position = position, .order = scores.lanes.order_of(this_lane)});
        for (int e = 0; e < count; ++e) row[e] = form(row[e], entry{this_lane, e, count, position[e], 0});
      } else {
        for (int e = 0; e < count; ++e) row[e] = f(row[e], entry{this_lane, e, count, position[e], 0});
      }
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
