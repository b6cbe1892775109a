// SPDX-License-Identifier: Apache-2.0
// Device implementation of map_lanes, with one thread for each lane.
#pragma once

#include <kvpolicy/ops/cuda/run/backend.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/map_lanes.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

template <class Function>
struct map_lanes_body {
  lanes batch;
  Function f;
  by_lane<int> out;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    lane const one = batch.at(static_cast<int>(i));
    *out.row(one) = f(entries_of_lane(batch, one));
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::map_lanes_t, Backend> {
  template <class Executor, class Function>
  static void run(Executor& exec, lanes const& batch, Function const& f, by_lane<int> const& out) {
    detail::launch_each(exec, batch.size(), detail::map_lanes_body<Function>{batch, f, out});
  }
};

}  // namespace KVPOLICY_NAMESPACE
