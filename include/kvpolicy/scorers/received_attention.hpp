// SPDX-License-Identifier: Apache-2.0
// Scores entries by the attention that they have received, in sum or for each position since their own.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/recorders/record_attention_mass.hpp>
#include <kvpolicy/recorders/record_value_mass.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The sum that an entry has, or that sum for each position from its own to the newest.
struct mass_by_age {
  by_lane<float const> mass;
  lanes batch;
  bool by_age;
  KVPOLICY_HD float operator()(float, entry at) const {
    float const sum = mass.row(at.lane)[at.ordinal];
    return by_age ? sum / static_cast<float>(batch.newest(at.lane) - at.position + 1) : sum;
  }
};

}  // namespace detail

/// Scores each entry by the attention that it has received since it was appended, as H2O does, and forces none. The
/// query heads of a lane are reduced row by row, where H2O reduces their sums.
///
///     s_j = acc_j                            acc: see `record_attention_mass`
///     s_j = acc_j / (newest - own + 1)       with `by_age`, by positions
struct received_attention {
  bool by_age = false;
  reduction group = reduction::sum;

  static constexpr auto name = "received_attention";
  static constexpr auto fields() {
    return make_fields(field{"by_age", &received_attention::by_age}, field{"group", &received_attention::group});
  }
  using needs = kvpolicy::needs<attention_mass>;
  static constexpr granularity decides = granularity::lane;

  void check(char const* call) const {
    expects(group != reduction::last, call, "received_attention.group", "last", "query heads have no order");
  }
  [[nodiscard]] constexpr auto recorders() const {
    return std::tuple{record_attention_mass{group, reduction_order::group_then_rows}};
  }
  [[nodiscard]] detail::mass_by_age entry_scores(auto const& in) const {
    return {in.template get<attention_mass>().mass, in.lanes, by_age};
  }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(received_attention const&, received_attention const&) = default;
};

/// The same, weighted by the norms of the entries' values: see `record_value_mass`.
struct received_by_value {
  bool by_age = false;
  reduction group = reduction::sum;

  static constexpr auto name = "received_by_value";
  static constexpr auto fields() {
    return make_fields(field{"by_age", &received_by_value::by_age}, field{"group", &received_by_value::group});
  }
  using needs = kvpolicy::needs<attention_mass>;
  static constexpr granularity decides = granularity::lane;

  void check(char const* call) const {
    expects(group != reduction::last, call, "received_by_value.group", "last", "query heads have no order");
  }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_value_mass{group}}; }
  [[nodiscard]] detail::mass_by_age entry_scores(auto const& in) const {
    return {in.template get<attention_mass>().mass, in.lanes, by_age};
  }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(received_by_value const&, received_by_value const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
