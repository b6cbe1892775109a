// SPDX-License-Identifier: Apache-2.0
// Scissorhands keeps the entries that the last query rows have attended to.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/recorders/record_mass_ring.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by the attention that it has received from the last `history` query rows, as it was when they came
/// (Liu et al. 2023, arXiv:2305.17118). Where that is all of them, it is H2O's score.
///
///     s_j = sum over the last `history` rows of p_ij         reduced over the query heads of the lane by `group`
///
/// The last `recent` entries are forced. The state has 4 `history` bytes more for each entry.
struct scissorhands {
  int history = 32;
  int recent = 32;
  reduction group = reduction::sum;

  static constexpr auto name = "scissorhands";
  static constexpr auto fields() {
    return make_fields(field{"history", &scissorhands::history}, field{"recent", &scissorhands::recent},
                       field{"group", &scissorhands::group});
  }
  using needs = kvpolicy::needs<mass_ring>;
  static constexpr granularity decides = granularity::lane;

  /// The score of an entry is the sum of what its rows gave.
  struct sum_of_rows {
    mass_ring of;
    KVPOLICY_HD float operator()(float, entry at) const {
      float const* const mass = of.masses.row(at.lane) + std::int64_t{at.ordinal} * of.rows;
      float sum = 0;
      for (int r = 0; r < of.rows; ++r) sum += mass[r];
      return sum;
    }
  };

  void check(char const* call) const {
    expects(history >= 1 && history <= 4096, call, "scissorhands.history", history, "1 to 4,096 rows are remembered");
    expects(recent >= 0, call, "scissorhands.recent", recent, "a count cannot be negative");
    expects(group != reduction::last, call, "scissorhands.group", "last", "query heads have no order");
  }
  [[nodiscard]] constexpr kvpolicy::recent forces() const { return {recent}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_mass_ring{history, group}}; }

  [[nodiscard]] sum_of_rows entry_scores(auto const& in) const { return {in.template get<mass_ring>()}; }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(scissorhands const&, scissorhands const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
