// SPDX-License-Identifier: Apache-2.0
// Host implementation of map_lanes.
#pragma once

#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/map_lanes.hpp>

namespace KVPOLICY_NAMESPACE {

/// Works on the calling thread: a lane takes some nanoseconds, less than waking another thread for them.
template <>
struct implementation<ops::map_lanes_t, host> {
  template <class Function>
  static void run(host_executor&, lanes const& batch, Function const& f, by_lane<int> const& out) {
    detail::for_each_lane(batch, [&](int, lane one) { *out.row(one) = f(detail::entries_of_lane(batch, one)); });
  }
};

}  // namespace KVPOLICY_NAMESPACE
