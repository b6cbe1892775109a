// SPDX-License-Identifier: Apache-2.0
// Host implementation of sort_scores.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/radix_key.hpp>
#include <kvpolicy/ops/sort_scores.hpp>

namespace KVPOLICY_NAMESPACE {

/// A worker sorts a whole segment.
template <>
struct implementation<ops::sort_scores_t, host> {
  static void run(host_executor& exec, score_view const& scores) {
    exec.for_each(scores.segments(), [&](int segment, int) {
      float* const row = scores.row(segment);
      std::sort(row, row + scores.lanes.committed(scores.lane_of(segment)),
                [](float a, float b) { return detail::radix_key(a) > detail::radix_key(b); });
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
