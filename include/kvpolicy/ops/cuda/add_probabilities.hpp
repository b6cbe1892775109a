// SPDX-License-Identifier: Apache-2.0
// Device implementation of add_probabilities: one thread for each entry, so that a warp reads neighbouring numbers.
#pragma once

#include <kvpolicy/ops/add_probabilities.hpp>
#include <kvpolicy/ops/cuda/run/page_launches.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Handles entry i % bound of lane i / bound.
struct add_probability {
  kvpolicy::lanes lanes;
  attention_probabilities from;
  reduction how;
  by_lane<float> mass;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    lane const one = lanes.at(static_cast<int>(i / lanes.capacity));
    int const e = static_cast<int>(i % lanes.capacity);
    if (e >= lanes.committed(one) || e >= from.entries) return;
    int const group = from.heads / lanes.heads;
    int const rows = from.committed_rows(lanes, one);
    float all = 0;
    for (int h = 0; h < group; ++h) {
      bool const apart = h > 0 && how == reduction::max;
      int const head = one.head * group + h;
      float sum = apart ? 0.0f : all;
      for (int r = 0; r < rows; ++r) {
        sum += load(from.element, from.at(one, head, from.stored(one, r)) + std::int64_t{e} * bytes_of(from.element));
      }
      all = !apart || sum > all || sum != sum ? sum : all;
    }
    mass.row(one)[e] += how == reduction::mean ? all / static_cast<float>(group) : all;
  }
};

}  // namespace detail

/// Takes one launch and no scratch. An entry beyond the end of the rows keeps its mass.
template <kernel_backend Backend>
struct implementation<ops::add_probabilities_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, attention_probabilities const& from, reduction group,
                  by_lane<float> const& mass) {
    if (from.rows == 0) return;
    detail::launch_each(exec, std::int64_t{batch.size()} * batch.capacity,
                        detail::add_probability{batch, from, group, mass});
  }
};

}  // namespace KVPOLICY_NAMESPACE
