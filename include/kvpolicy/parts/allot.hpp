// SPDX-License-Identifier: Apache-2.0
// Budgets that depend on what is there: a decision asks them for the share of every lane before it picks.
#pragma once

#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/parts/budget.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// A budget with the member `allot`. It is found by its name, because its arguments are known in a decision only.
template <class Budget>
concept allots = std::is_class_v<Budget> && hook::budget_allot::names<Budget>;

/// The hook `allot` of a budget, in a decision.
template <class Budget, class Executor, class SignalSet>
using allotting_hooks =
    hooks<Budget,
          optional_hook<hook::budget_allot, form_of_call<hook::budget_allot, Budget, anything, Executor&,
                                                         SignalSet const&, score_view const&, by_lane<int> const&>()>>;

/// A budget that is chosen at run time, and may be one of those.
template <class Budget>
concept may_allot = requires(Budget const& limit) {
  { limit.is_allotted() } -> std::same_as<bool>;
};

/// True if a decision asks the budget for the share of every lane.
template <class Budget>
constexpr bool is_allotted([[maybe_unused]] Budget const& limit) {
  if constexpr (may_allot<Budget>) {
    return limit.is_allotted();
  } else {
    return allots<Budget>;
  }
}

/// True if a lane's share depends on lanes of other layers, so that all layers decide in one call.
template <class Budget>
constexpr bool compares_layers([[maybe_unused]] Budget const& limit) {
  if constexpr (requires { limit.compares_layers(); }) {
    return limit.compares_layers();
  } else {
    return false;
  }
}

/// The lanes that must be in one decision because of a budget.
template <class Budget>
constexpr budget_scope scope_at_once(Budget const& limit) {
  return compares_layers(limit) ? budget_scope::sequence : scope_of(limit);
}

/// The shares that a budget has allotted.
template <class Budget>
struct allotted_budget {
  by_lane<int> shares{};
  Budget limit{};

  KVPOLICY_HD constexpr int operator()(lane this_lane, int) const { return *shares.row(this_lane); }
  [[nodiscard]] KVPOLICY_HD constexpr budget_scope scope() const { return scope_of(limit); }
  [[nodiscard]] KVPOLICY_HD constexpr int floor(int share) const { return floor_of(limit, share); }
};

/// The budget that a decision reads: `limit`, or the shares that it allots now. `shares` is memory for a number of each
/// lane.
template <class Executor, class Budget, class SignalSet>
auto allotted(Executor& exec, Budget const& limit, SignalSet const& in, score_view const& scores,
              by_lane<int> const& shares) {
  if constexpr (may_allot<Budget>) {
    if (!limit.is_allotted()) return limit;
    limit.allot(exec, in, scores, shares);
    return limit.with_shares(shares);
  } else if constexpr (allots<Budget>) {
    if constexpr (fits<allotting_hooks<Budget, Executor, SignalSet>>()) limit.allot(exec, in, scores, shares);
    return allotted_budget<Budget>{shares, limit};
  } else {
    return limit;
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
