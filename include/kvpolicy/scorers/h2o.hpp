// SPDX-License-Identifier: Apache-2.0
// H2O keeps the entries that have received the most attention so far, and the most recent entries.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/parts/forced.hpp>
#include <kvpolicy/recorders/record_attention_mass.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by the attention that it has received since it was appended (Zhang et al. 2023, arXiv:2306.14048).
///
///     acc_j += sum over this forward's rows of p_ij         reduced over the query heads of the lane by `group`
///     keep   = the `heavy` entries of largest acc before the recent window, and the last `recent` entries
///
/// Dropped entries leave the cache, and their mass with them: attention is normalised over the entries that are left.
/// By default (-1, -1) the budget N is split into heavy = N / 2 and recent = N - heavy. If one of the two is given, the
/// other is the rest of the budget. If both are given, the recent window is forced and the heavy hitters fill the rest
/// of the budget.
struct h2o {
  int heavy = -1;
  int recent = -1;
  reduction group = reduction::sum;

  static constexpr auto name = "h2o";
  static constexpr auto fields() {
    return make_fields(field{"heavy", &h2o::heavy}, field{"recent", &h2o::recent}, field{"group", &h2o::group});
  }
  using needs = kvpolicy::needs<attention_mass>;
  static constexpr granularity decides = granularity::lane;

  /// The score of an entry is the attention mass that it has received so far.
  struct copy_mass {
    by_lane<float const> mass;
    [[nodiscard]] KVPOLICY_HD float const* row(lane this_lane) const { return mass.row(this_lane); }
    KVPOLICY_HD float operator()(float, entry at) const { return row(at.lane)[at.ordinal]; }
  };

  void check(char const* call) const {
    expects(heavy >= -1, call, "h2o.heavy", heavy, "a count, or -1 for what the budget leaves");
    expects(recent >= -1, call, "h2o.recent", recent, "a count, or -1 for what the budget leaves");
    expects(group != reduction::last, call, "h2o.group", "last", "query heads have no order");
  }
  [[nodiscard]] constexpr recent_of_budget forces() const { return {heavy, recent}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_attention_mass{group}}; }

  [[nodiscard]] copy_mass entry_scores(auto const& in) const { return {in.template get<attention_mass>().mass}; }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(h2o const&, h2o const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
