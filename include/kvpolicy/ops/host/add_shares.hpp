// SPDX-License-Identifier: Apache-2.0
// Host implementation of add_shares: a worker shares out the row of a lane.
#pragma once

#include <kvpolicy/ops/add_shares.hpp>
#include <kvpolicy/ops/host/executor.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::add_shares_t, host> {
  static void run(host_executor& exec, score_view const& mass, by_lane<float const> const& weights,
                  by_lane<float> const& to) {
    exec.for_each(mass.segments(), [&](int segment, int) {
      lane const one = mass.lane_of(segment);
      int const count = mass.lanes.committed(one);
      float const *const given = mass.row(segment), *const weight = weights.row(one);
      detail::shared_sums sums;
      for (int e = 0; e < count; ++e) sums.add(given[e], weight[e]);
      for (int e = 0; e < count; ++e) to.row(one)[e] += sums.share(given[e], weight[e]);
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
