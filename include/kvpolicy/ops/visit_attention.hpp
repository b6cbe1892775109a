// SPDX-License-Identifier: Apache-2.0
// Verb: shows the attention of each new query row to a function, row by row.
#pragma once

#include <concepts>
#include <kvpolicy/ops/attention_mass.hpp>

namespace KVPOLICY_NAMESPACE {

/// A query row of a lane: its index among the lane's valid rows, and its position.
struct attention_row {
  int index = 0;
  int position = 0;
};

/// Whose attention is visited, and how the query heads of a group are reduced.
struct visited_attention {
  reduction group = reduction::sum;
  int last_rows = 0;  ///< how many of the last rows are visited; 0: all
};

namespace ops {

/// `visit_attention(exec, lanes, keys, rows, options, visit)`: calls visit(p, row, entry) with the probability p that
/// each query row gives to each entry that it sees, reduced over the query heads of the lane after the softmax. Rows
/// come in their order for each entry, so that a column may depend on what a row before it left there.
///
/// - in: as for `compute_attention_mass` over all keys; `visit`, a struct with a KVPOLICY_HD `void operator()(float p,
///   attention_row const&, entry const&) const`, which writes columns of its own at its entry. The entry has no budget.
/// - cost: that of `compute_attention_mass` of as many rows, and a call for each row and entry. Scratch is the same.
/// - throws: as `compute_attention_mass`; `invalid_argument` if rows have no position.
/// - source: Scissorhands and LazyEviction, which remember single rows.
struct visit_attention_t : verb<visit_attention_t> {
  static constexpr auto name = "visit_attention";
  template <executor Executor, class Visit>
  void operator()(Executor& exec, lanes const& batch, keys const& from, query_view const& rows,
                  visited_attention const& how, Visit const& visit) const {
    // Parameters have types here, so that callers may write options in braces.
    verb<visit_attention_t>::operator()(exec, batch, from, rows, how, visit);
  }
  template <class Visit>
    requires std::invocable<Visit const&, float, attention_row const&, entry const&>
  static void check(lanes const& batch, keys const& from, query_view const& rows, visited_attention const& how,
                    Visit const&) {
    compute_attention_mass_t::check(from, rows, options(how), {batch});
    expects(rows.rows == 0 || rows.position.data != nullptr, "visit_attention", "queries.position", "null",
            "every row says its position");
  }
  [[nodiscard]] static attention_mass_options options(visited_attention const& how) {
    return {.group = how.group, .order = reduction_order::group_then_rows, .last_rows = how.last_rows};
  }
};
inline constexpr visit_attention_t visit_attention{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
