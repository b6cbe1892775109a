// SPDX-License-Identifier: Apache-2.0
// Host implementation of visit_attention: a worker computes and visits the rows of a lane.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/attention/lane_probabilities.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/visit_attention.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The rows of a lane, one by one.
class lane_rows_of_attention : lane_probabilities {
 public:
  using lane_probabilities::lane_probabilities;

  /// Calls visit(p, row, e) for each row and each entry e that it sees: rows of an entry in their order.
  template <class Visit>
  void visit_rows(Visit const& visit) {
    row_block block = first_block();
    for (int r = 0; r < count_; r += 16) {
      int const count = std::min(16, count_ - r);
      float const* const values = combine_heads(block, r, count);
      for (int e = 0; e < seen_; ++e) {
        for (int i = 0; i < count; ++i) {
          float const p = values[static_cast<std::ptrdiff_t>(e) * block.rows + i];
          if (e < block.visible[i]) visit(p * share_of_head(), row_at(r + i), e);
        }
      }
    }
  }
};

}  // namespace detail

template <>
struct implementation<ops::visit_attention_t, host> {
  static std::size_t scratch(shape const& model, int bound) {
    return detail::lane_probabilities::scratch(model, bound);
  }

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
      detail::lane_rows_of_attention made(exec, from, rows, options, score_view{batch}, one, exec.scratch(worker));
      made.visit_rows(
          [&](float p, attention_row const& row, int e) { visit(p, row, entry{one, e, count, position[e], 0}); });
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
