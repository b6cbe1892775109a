// SPDX-License-Identifier: Apache-2.0
// Host implementation of normalise: a worker normalises a whole segment.
#pragma once

#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/normalise.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::normalise_t, host> {
  static void run(host_executor& exec, normalising how, score_view const& scores) {
    exec.for_each(scores.segments(), [&](int segment, int) {
      int const count = scores.lanes.committed(scores.lane_of(segment));
      float* const row = scores.row(segment);
      detail::score_range all;
      for (int e = 0; e < count; ++e) all.add(row[e]);
      double seconds = 0;
      if (how == normalising::z || how == normalising::softmax) {
        for (int e = 0; e < count; ++e) seconds += static_cast<double>(all.second(how, row[e]));
      }
      float const by = all.divisor(how, seconds);
      for (int e = 0; e < count; ++e) row[e] = all.normalised(how, row[e], by);
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
