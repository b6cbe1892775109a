// SPDX-License-Identifier: Apache-2.0
// By how much the expected logit of an entry is above the threshold of a query head: the score of AdaEA.
#pragma once

#include <kvpolicy/core/label.hpp>
#include <kvpolicy/parts/model_tables.hpp>
#include <kvpolicy/scorers/expected_attention.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by itself, so that admissions can ask about it:
///
///     s_j = max over the group's heads h of (x_hj - threshold_h)      x: as `expected_attention` has it, by queries as
///                                                                     `query_model` gives them, which it does not turn
///
/// A profile for it is of queries after RoPE. Heads whose difference is NaN do not count unless all are. The plan has N
/// floats more for each lane.
struct expected_margin {
  bool covariance = true;      ///< false: x = s m k
  rows_of_heads thresholds{};  ///< a number for each query head of a KV head's group, in memory that the executor reads
  label table{{"thresholds"}};  ///< the name of these rows in specs

  static constexpr auto name = "expected_margin";
  static constexpr auto fields() {
    return make_fields(field{"covariance", &expected_margin::covariance}, field{"thresholds", &expected_margin::table});
  }
  using needs = kvpolicy::needs<keys, query_model>;
  using verbs = kvpolicy::verbs<ops::logits_t, ops::quadratic_form_t>;
  static constexpr granularity decides = granularity::lane;
  static constexpr bool any_order = true;

  /// Takes the table that `table` names, when a spec is read.
  void use_table(rows_of_heads const& named) { thresholds = named; }

  void check(char const* call, shape const& model) const {
    expects(thresholds.rows.data != nullptr, call, "expected_margin.thresholds", "null", "each query head has one");
    expects(thresholds.dims == model.group(), call, "expected_margin.thresholds.dims", thresholds.dims,
            [&] { return "a KV head has " + std::to_string(model.group()) + " query heads"; });
  }
  void refuse(auto&, auto const& in) const {
    if (covariance) query_model::expect_part("decide", name, "square", in.template get<query_model>().square);
  }
  [[nodiscard]] static constexpr int spare_rows(lanes const& batch, shape const&) { return batch.size(); }

  /// The largest margin of the heads so far.
  struct of_group {
    by_lane<float> head;
    rows_of_heads thresholds;
    int which;
    KVPOLICY_HD float operator()(float old, entry at) const {
      float const now = head.row(at.lane)[at.ordinal] - thresholds.rows.row(at.lane)[which];
      return which == 0 || now > old || old != old ? now : old;
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    query_model const& model = in.template get<query_model>();
    int const group = model.mean.heads / out.lanes.heads;
    score_view const head = contiguous_scores(out.lanes, granularity::lane, out.spare, out.lanes.capacity);
    for (int h = 0; h < group; ++h) {
      detail::expected_logits(exec, in.template get<keys>(), one_of_group(model, h, group), covariance, head);
      ops::map(exec, out, of_group{head.rows, thresholds, h});
    }
  }

  friend bool operator==(expected_margin const&, expected_margin const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
