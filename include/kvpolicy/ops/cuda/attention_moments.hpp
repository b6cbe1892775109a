// SPDX-License-Identifier: Apache-2.0
// Device implementation of attention_moments: the statistics of rows as for masses, and then a thread for each entry
// that adds up its rows in their order.
#pragma once

#include <kvpolicy/ops/attention_moments.hpp>
#include <kvpolicy/ops/cuda/attention_mass.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Adds up the probabilities of each entry, their squares and their entropies. A lane has one query head.
struct moments_reduction {
  struct entry_total {
    float sum, squares, entropy;
  };

  known_sums sums;
  moments_options how;
  moment_rows to;

  KVPOLICY_HD void add(lane_tile const& of, tile_part const& at, int k, entry_total& all) const {
    for (int i = 0; i < at.count; ++i) {
      float const p = of.tile.probability(i, k);
      all.sum += p;
      all.squares += p * p;
      all.entropy -= p * ::logf(p + 1e-10f);
    }
  }
  KVPOLICY_HD void put(lane_tile const& of, int e, entry_total const& all) const {
    lane const one = of.lane;
    int const rows = of.count;
    bool const in_order = rows > 0 && !of.task.sees_all();
    int const before = in_order ? of.task.position_of(one, of.begin) : no_position;
    bool const is_scored = rows > 0 && of.task.scores.lanes.position.row(one)[e] < before;
    entry_total const made = is_scored ? all : entry_total{};
    entry_moments const write{of.task.scores.rows.row(one), to.variance.row(one), to.entropy.row(one), how.gamma,
                              how.accumulate};
    write.put(e, rows, made.sum, made.squares);
    write.put_entropy(e, made.entropy);
  }
};

}  // namespace detail

/// Takes three launches. It takes up to 1024 rows.
template <kernel_backend Backend>
struct implementation<ops::attention_moments_t, Backend> {
  static std::size_t scratch(shape const& model, lanes const& batch) {
    return implementation<ops::compute_attention_mass_t, Backend>::scratch(model, batch);
  }

  template <class Executor>
  static void run(Executor& exec, keys const& from, query_view const& rows, moments_options const& how,
                  moment_rows const& to, score_view const& out) {
    if (rows.rows > 0) detail::check_aligned("attention_moments", rows);
    int const group = rows.rows > 0 ? rows.heads / out.lanes.heads : 1;
    keys const those = detail::keys_of_head(from, group, how.head);
    query_view const some = detail::rows_of_head(rows, group, how.head);
    detail::mass_call const call("attention_moments", those, some, {.last_rows = how.last_rows}, out);
    call.check_rows_at_once();
    if (out.segments() == 0) return;
    detail::mass_launches launches(exec, call, detail::fma_product::of(from.rows, some));
    if (call.rows() > 0) launches.sums(0);
    launches.reduce(call.part(0, detail::sums_storage::most_rows, true),
                    detail::moments_reduction{launches.known(), how, to});
  }
};

}  // namespace KVPOLICY_NAMESPACE
