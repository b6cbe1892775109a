// SPDX-License-Identifier: Apache-2.0
// ObservedAttention keeps the entries that received the most attention from the rows that see them.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/recorders/record_attention_mass.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by the mean attention that it receives from the query rows that see it (kvpress's
/// ObservedAttentionPress). Observe a prompt with all its query rows, and decide once.
///
///     S_j = sum over rows of p_ij, reduced over the group, / (N - j)        N - j rows see entry j
struct observed_attention {
  reduction group = reduction::mean;

  static constexpr auto name = "observed_attention";
  static constexpr auto fields() { return make_fields(field{"group", &observed_attention::group}); }
  using needs = kvpolicy::needs<attention_mass>;
  static constexpr granularity decides = granularity::lane;
  static constexpr bool prompts_only = true;

  /// The score of an entry is its attention mass, divided by the number of rows that see it.
  struct mean_mass {
    by_lane<float const> mass;
    KVPOLICY_HD float operator()(float, entry at) const {
      return mass.row(at.lane)[at.ordinal] / static_cast<float>(at.count - at.ordinal);
    }
  };

  void check(char const* call) const {
    expects(group != reduction::last, call, "observed_attention.group", "last", "query heads have no order");
  }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_attention_mass{group}}; }
  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::map(exec, out, mean_mass{in.template get<attention_mass>().mass});
  }

  friend bool operator==(observed_attention const&, observed_attention const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
