// SPDX-License-Identifier: Apache-2.0
// Host implementation of leverage: a worker computes a lane.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/lane_leverages.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::leverage_t, host> {
  static std::size_t scratch(shape const& model, int) {
    int const dims = std::max(model.head_dim, model.value_dim);
    return detail::scratch_of<double>(memory::of_lane(dims)) + detail::scratch_of<double>(memory::of_batch(dims));
  }

  template <class Among>
  static void run(host_executor& exec, row_view const& rows, leverage_options const& how, Among const& among,
                  score_view const& out) {
    int const dims = rows.rows.channels;
    exec.for_each(out.segments(), [&](int segment, int worker) {
      detail::scratch_arena arena(exec.scratch(worker));
      auto* const of_lane = arena.take<double>(memory::of_lane(dims));
      auto* const batch = arena.take<double>(memory::of_batch(dims));
      detail::one_thread alone;
      detail::lane_leverages lane(alone, rows, how, among, out.lanes, out.lane_of(segment),
                                  memory::in(of_lane, batch, dims));
      expects(lane.compute(out.row(segment)), "leverage", "jitter", how.jitter, [&] {
        return "even with 100000 times as much the Gram matrix of lane " + std::to_string(segment) +
               " has no Cholesky factor";
      });
    });
  }

 private:
  using memory = detail::leverage_memory;
};

}  // namespace KVPOLICY_NAMESPACE
