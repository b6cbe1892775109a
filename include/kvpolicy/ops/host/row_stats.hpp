// SPDX-License-Identifier: Apache-2.0
// Host implementation of row_stats: a worker reads the scores of a whole segment.
#pragma once

#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/row_stats.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::row_stats_t, host> {
  template <class Among>
  static void run(host_executor& exec, score_view const& scores, Among const& among, statistic of,
                  by_lane<float> const& out) {
    exec.for_each(scores.segments(), [&](int segment, int) {
      lane const one = scores.lane_of(segment);
      int const count = scores.lanes.committed(one);
      int const* const position = scores.lanes.position.row(one);
      float const* const row = scores.row(segment);
      auto const each = [&](auto const& visit) {
        for (int e = 0; e < count; ++e) {
          if (among(entry{one, e, count, position[e], 0})) visit(row[e]);
        }
      };
      detail::score_sums all;
      each([&](float score) { all.add(score); });
      double squares = 0;
      if (of == statistic::variance) each([&](float score) { squares += all.square(score); });
      *out.row(one) = all.value(of, squares);
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
