// SPDX-License-Identifier: Apache-2.0
// Q-Filters scores keys by a direction that was found once for each head of a model.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/label.hpp>
#include <kvpolicy/ops/logits.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/parts/model_tables.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by how far its key points along the direction that queries of the head share (Godey et al. 2025,
/// arXiv:2503.02812): no query is read.
///
///     s_j = -<u, k_j>          u: the direction of the KV head, k: after RoPE, as the cache has it
///
/// The direction is the first right singular vector of queries that a profile of the model has collected, with the sign
/// with which keys of little attention have large products; it is not scaled.
struct q_filters {
  rows_of_heads directions{};  ///< one row for each KV head, in memory of the caller that the executor can read
  label table{{"q_filters"}};  ///< the name of these rows in specs

  static constexpr auto name = "q_filters";
  static constexpr auto fields() { return make_fields(field{"table", &q_filters::table}); }
  using needs = kvpolicy::needs<keys>;
  using verbs = kvpolicy::verbs<ops::logits_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr bool any_order = true;

  /// Takes the table that `table` names, when a spec is read.
  void use_table(rows_of_heads const& named) { directions = named; }

  void check(char const* call, shape const& model) const {
    expects(directions.rows.data != nullptr, call, "q_filters.directions", "null", "each KV head has a direction");
    expects(directions.dims == model.head_dim, call, "q_filters.directions.dims", directions.dims,
            [&] { return "the model's keys have " + std::to_string(model.head_dim) + " channels"; });
  }
  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::logits(exec, in.template get<keys>(), one_row_a_lane(directions.rows, directions.dims, out.lanes),
                {.scale = 1.0f}, negated{}, out);
  }

  friend bool operator==(q_filters const&, q_filters const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
