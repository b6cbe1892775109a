// SPDX-License-Identifier: Apache-2.0
// Device implementation of visit_attention: the statistics of rows as for masses, and then a thread for each entry that
// visits its rows in their order.
#pragma once

#include <kvpolicy/ops/cuda/attention_mass.hpp>
#include <kvpolicy/ops/visit_attention.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Shows rows to the function. Heads of a row are neighbours in the task.
template <class Visit>
struct visit_reduction {
  struct entry_total {};

  known_sums sums;
  mass_reduction how;
  Visit visit;

  KVPOLICY_HD void add(lane_tile const& of, tile_part const& at, int k, entry_total&) const {
    lanes const& batch = of.task.scores.lanes;
    float const share = how.divide_by > 1 ? 1.0f / static_cast<float>(how.divide_by) : 1.0f;
    reduce_probabilities(of, how.rows_maximum, at, k, [&](int i, float value) {
      if (!of.tile.sees(i, k)) return;
      int const row = of.begin + of.row(at.base + i).number;
      visit(value * share, attention_row{row, of.task.position_of(of.lane, row)},
            entry{of.lane, at.first + k, of.entries, batch.position.row(of.lane)[at.first + k], 0});
    });
  }
  KVPOLICY_HD void put(lane_tile const&, int, entry_total) const {}
};

}  // namespace detail

/// Takes three launches for each 1024 rows, or one with `rows.lse`. It multiplies by multiply-adds: a step has few
/// rows.
template <kernel_backend Backend>
struct implementation<ops::visit_attention_t, Backend> {
  static std::size_t scratch(shape const& model, lanes const& batch) {
    return implementation<ops::compute_attention_mass_t, Backend>::scratch(model, batch);
  }

  template <class Executor, class Visit>
  static void run(Executor& exec, lanes const& batch, keys const& from, query_view const& rows,
                  visited_attention const& how, Visit const& visit) {
    if (rows.rows == 0) return;
    detail::mass_call const call("visit_attention", from, rows, ops::visit_attention_t::options(how), {batch});
    int const most = detail::sums_storage::most_rows;
    detail::mass_launches launches(exec, call, detail::fma_product::of(from.rows, rows));
    for (int first = 0; first < call.rows(); first += most) {
      if (!call.sums_are_given()) launches.sums(first);
      launches.reduce(call.part(first, most, false),
                      detail::visit_reduction<Visit>{launches.known(), call.reduction_of(false), visit});
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
