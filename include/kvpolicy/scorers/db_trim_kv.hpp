// SPDX-License-Identifier: Apache-2.0
// DBTrimKV keeps the tokens of all lanes whose predicted retention over the next steps is highest.
#pragma once

#include <cmath>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/parts/trigger.hpp>
#include <kvpolicy/recorders/record_retention.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by its retention over the next n steps, where a gate has predicted beta when the token was
/// appended (arXiv:2605.09649). It reads no query.
///
///     score_j = log sum_{k = 1..n} beta_j^(t - p_j + k)
///             = (t + 1 - p_j) log beta_j + log(1 - beta_j^n) - log(1 - beta_j)     t: the position of the newest entry
///
/// A beta of 1 makes it log n. With one step it is `trim_kv` with an age offset of 1. The gate is one for all layers
/// and heads, so that scores of different lanes compare: unless a spec says otherwise, all lanes share one budget.
struct db_trim_kv {
  int steps = 1;   ///< n
  int buffer = 1;  ///< decide when the lanes exceed their budget by at least this many entries each
  int window = 0;  ///< how many of the last entries are kept

  static constexpr auto name = "db_trim_kv";
  static constexpr auto fields() {
    return make_fields(field{"steps", &db_trim_kv::steps}, field{"buffer", &db_trim_kv::buffer},
                       field{"window", &db_trim_kv::window});
  }
  using needs = kvpolicy::needs<retention>;
  static constexpr granularity decides = granularity::lane;
  static constexpr budget_scope pools = budget_scope::sequence;

  /// The score of an entry. The column stores a log beta of 0 as -0; every formula below takes both.
  struct over_steps {
    by_lane<float const> log_beta;
    kvpolicy::lanes lanes;
    int steps;

    /// log sum_{k = 0..n - 1} e^(k x)
    [[nodiscard]] KVPOLICY_HD float of_sum(float x) const {
      auto const n = static_cast<float>(steps);
      if (steps == 1) return 0;
      if (x == 0) return std::log(n);
      return std::log(std::fabs(std::expm1(n * x))) - std::log(std::fabs(std::expm1(x)));
    }
    KVPOLICY_HD float operator()(float, entry at) const {
      int const newest = lanes.order_of(at.lane).newest_of(lanes.position.row(at.lane), at.count);
      float const x = log_beta.row(at.lane)[at.ordinal];
      return static_cast<float>(std::int64_t{newest} + 1 - at.position) * x + of_sum(x);
    }
  };

  void check(char const* call) const {
    expects(steps >= 1, call, "db_trim_kv.steps", steps, "retention is looked at over at least one step");
    expects(buffer >= 1, call, "db_trim_kv.buffer", buffer, "at the budget nothing moves");
    expects(window >= 0, call, "db_trim_kv.window", window, "a count cannot be negative");
  }
  [[nodiscard]] constexpr recent forces() const { return {window}; }
  [[nodiscard]] constexpr full_buffer triggers() const { return {buffer}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_retention{}}; }

  [[nodiscard]] over_steps entry_scores(auto const& in) const {
    return {in.template get<retention>().log_beta, in.lanes, steps};
  }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(db_trim_kv const&, db_trim_kv const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
