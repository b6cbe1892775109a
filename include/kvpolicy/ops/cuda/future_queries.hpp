// SPDX-License-Identifier: Apache-2.0
// Device implementation of future_queries, with one thread for each pair of a query head.
#pragma once

#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/future_queries.hpp>

namespace KVPOLICY_NAMESPACE {

/// Takes one launch.
template <kernel_backend Backend>
struct implementation<ops::future_queries_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, query_model const& model, future_positions const& to,
                  future_rows const& out) {
    detail::turn_future_pair const turn{batch, model, to, out};
    detail::launch_each(exec, turn.count(), turn);
  }
};

}  // namespace KVPOLICY_NAMESPACE
