// SPDX-License-Identifier: Apache-2.0
// Host implementation of visit_attention: a worker computes and visits the rows of a lane.
#pragma once

#include <kvpolicy/ops/host/attention/lane_mass.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/visit_attention.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::visit_attention_t, host> {
  static std::size_t scratch(shape const& model, int bound) { return detail::lane_mass::scratch(model, bound); }

  template <class Visit>
  static void run(host_executor& exec, lanes const& batch, keys const& from, query_view const& rows,
                  visited_attention const& how, Visit const& visit) {
    if (rows.rows == 0) return;
    detail::check_sinks("visit_attention", "keys.logits", from.logits.sinks, batch, rows.heads);
    attention_mass_options const options = ops::visit_attention_t::options(how);
    exec.for_each(batch.size(), [&](int i, int worker) {
      lane const one = batch.at(i);
      int const count = batch.committed(one);
      int const* const position = batch.position.row(one);
      detail::lane_mass made(exec, from, rows, options, score_view{batch}, one, exec.scratch(worker));
      made.visit_rows(
          [&](float p, attention_row const& row, int e) { visit(p, row, entry{one, e, count, position[e], 0}); });
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
