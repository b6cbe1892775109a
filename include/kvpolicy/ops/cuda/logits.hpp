// SPDX-License-Identifier: Apache-2.0
// Device implementation of logits: tiles of keys and rows, multiplied as for attention and reduced at once.
#pragma once

#include <kvpolicy/ops/cuda/attention/tiles.hpp>
#include <kvpolicy/ops/logits.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Reduces the rows of each entry: neighbouring ones first.
template <class Combine>
struct logits_reduction {
  using entry_total = float;

  logits_options how;
  Combine combine;
  no_sums sums{};

  KVPOLICY_HD void add(lane_tile const& of, tile_part const& at, int k, float& total) const {
    bool const rows_maximum = how.rows == reduction::max, group_maximum = how.group == reduction::max;
    bool const apart = of.task.rows_apart;
    int const series = apart ? of.count : of.task.group;
    of.reduce_series(
        at, k, apart ? rows_maximum : group_maximum, [&](int i) { return of.tile.logit(i, k); },
        [&](int i, float inner) {
          fold_into(total, inner, apart ? group_maximum : rows_maximum, at.base + i < series);
        });
  }
  KVPOLICY_HD void put(lane_tile const& of, int e, float total) const {
    int const shares = (how.rows == reduction::mean && of.count > 0 ? of.count : 1) *
                       (how.group == reduction::mean ? of.task.group : 1);
    float& to = of.task.scores.rows.row(of.lane)[e];
    to = combine(to, total / static_cast<float>(shares));
  }
};

}  // namespace detail

/// Takes one launch and no scratch.
template <kernel_backend Backend>
struct implementation<ops::logits_t, Backend> {
  template <class Executor, class Combine>
  static void run(Executor& exec, keys const& from, query_view const& rows, logits_options const& how,
                  Combine const& combine, score_view const& out) {
    detail::check_aligned("logits", "keys", from.rows);
    if (rows.rows > 0) detail::check_aligned("logits", rows);
    detail::attention_task task;
    task.from = from;
    task.rows = rows;
    task.rows.position = {};
    task.scores = out;
    task.group = rows.rows > 0 ? rows.heads / out.lanes.heads : 1;
    task.scale = how.scale.has_value() ? *how.scale : detail::scale_of(from.logits, from.rows.channels);
    task.used = {how.last_rows};
    task.only_last = how.rows == reduction::last;
    task.rows_apart = how.order == reduction_order::rows_then_group || task.group == 1;
    detail::launch_reduction(exec, task, detail::logits_reduction<Combine>{how, combine});
  }
};

}  // namespace KVPOLICY_NAMESPACE
