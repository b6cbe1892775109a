// SPDX-License-Identifier: Apache-2.0
// Device implementation of projected_norm: tiles of values and rows of the projection, multiplied as for attention and
// reduced at once.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/attention/tiles.hpp>
#include <kvpolicy/ops/projected_norm.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Adds up the norms of the query heads. Those of a head's rows so far are in `inner`.
template <class Combine>
struct projected_norm_reduction {
  using entry_total = float;

  bool squares;
  Combine combine;
  no_sums sums{};

  /// What a tile has of a head is added up by itself, so that sums of many rows lose little.
  KVPOLICY_HD void add(lane_tile const& of, tile_part const& at, int k, float& total) const {
    float& inner = of.tile.inner[k];
    if (at.base == 0) inner = 0;
    float sum = 0;
    int row = at.base % of.count;
    for (int i = 0; i < at.count; ++i) {
      float const made = of.tile.logit(i, k);
      sum += squares ? made * made : ::fabsf(made);
      if (++row < of.count) continue;
      float const whole = inner + sum;
      total += squares ? ::sqrtf(whole) : whole;
      inner = sum = 0;
      row = 0;
    }
    inner += sum;
  }
  KVPOLICY_HD void put(lane_tile const& of, int e, float total) const {
    float& to = of.task.scores.rows.row(of.lane)[e];
    to = combine(to, total / static_cast<float>(of.task.group));
  }
};

}  // namespace detail

/// Takes one launch and no scratch.
template <kernel_backend Backend>
struct implementation<ops::projected_norm_t, Backend> {
  template <class Executor, class Combine>
  static void run(Executor& exec, values const& from, output_projection const& by, projected_norm_options const& how,
                  Combine const& combine, score_view const& out) {
    query_view const rows = by.rows();
    detail::check_aligned("projected_norm", "values", from.rows);
    detail::check_aligned("projected_norm", rows, "output_projection");
    detail::attention_task task;
    task.from = from;
    task.rows = rows;
    task.scores = out;
    task.group = by.heads / out.lanes.heads;
    bool const squares = how.norm == norm_of_row::l2;
    detail::launch_reduction(exec, task, detail::projected_norm_reduction<Combine>{squares, combine});
  }
};

}  // namespace KVPOLICY_NAMESPACE
