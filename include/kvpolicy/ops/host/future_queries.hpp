// SPDX-License-Identifier: Apache-2.0
// Host implementation of future_queries.
#pragma once

#include <kvpolicy/ops/future_queries.hpp>
#include <kvpolicy/ops/host/executor.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::future_queries_t, host> {
  static void run(host_executor& exec, lanes const& batch, query_model const& model, future_positions const& to,
                  future_rows const& out) {
    detail::turn_future_pair const turn{batch, model, to, out};
    std::int64_t const of_lane = turn.count() / std::max(batch.size(), 1);
    exec.for_each(batch.size(), [&](int i, int) {
      for (std::int64_t pair = 0; pair < of_lane; ++pair) turn(i * of_lane + pair);
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
