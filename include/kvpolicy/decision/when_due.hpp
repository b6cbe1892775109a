// SPDX-License-Identifier: Apache-2.0
// When the lanes of a policy decide: its trigger and that of its scorer, and the budget of a lane that is not due.
#pragma once

#include <kvpolicy/core/lanes.hpp>
#include <kvpolicy/parts/budget.hpp>
#include <kvpolicy/parts/trigger.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Fires if the policy's trigger and the scorer's own trigger both fire.
template <class Trigger, class Own>
struct both_trigger {
  Trigger of_policy;
  Own of_score;
  [[nodiscard]] KVPOLICY_HD bool operator()(int count, int allowed) const {
    return of_policy(count, allowed) && of_score(count, allowed);
  }
  [[nodiscard]] KVPOLICY_HD bool operator()(int count, int allowed, int lanes) const {
    return fires_in_pool(of_policy, count, allowed, lanes) && fires_in_pool(of_score, count, allowed, lanes);
  }
  [[nodiscard]] KVPOLICY_HD bool due(int newest) const
    requires(timed<Trigger> || timed<Own>)
  {
    return is_due(of_policy, newest) && is_due(of_score, newest);
  }
  [[nodiscard]] KVPOLICY_HD bool is_always_due() const {
    return detail::is_always_due(of_policy) && detail::is_always_due(of_score);
  }
};

/// The budget of a policy whose trigger is timed: a lane that is not due may keep what it has.
template <class Budget, class Trigger>
struct budget_when_due {
  Budget limit;
  Trigger when;
  lanes batch;
  KVPOLICY_HD int operator()(lane one, int count) const {
    return is_always_due(when) || is_due(when, batch.newest(one)) ? limit(one, count) : count;
  }
  [[nodiscard]] KVPOLICY_HD int average_of(lane one, int count) const
    requires requires(Budget const& of) { of.average_of(one, count); }
  {
    return limit.average_of(one, count);
  }
  [[nodiscard]] KVPOLICY_HD double dropped_part() const
    requires requires(Budget const& of) { of.dropped_part(); }
  {
    return limit.dropped_part();
  }
  [[nodiscard]] KVPOLICY_HD budget_scope scope() const { return scope_of(limit); }
  [[nodiscard]] KVPOLICY_HD int floor(int share) const { return floor_of(limit, share); }
};

/// Calls visit(trigger) with the scorer's own trigger, if it has one; returns `otherwise` if it has none.
template <class Score, class Visit, class Otherwise>
constexpr auto with_own_trigger(Score const& score, Visit const& visit, Otherwise const& otherwise) {
  auto const question = [&](auto const& one) -> decltype(visit(one.triggers())) { return visit(one.triggers()); };
  return ask(score, question, otherwise);
}

/// A trigger as a decision copies it. One that is chosen at run time has `compiled()`.
template <class Trigger>
constexpr auto compiled_trigger(Trigger const& from) {
  if constexpr (requires { from.compiled(); }) {
    return from.compiled();
  } else {
    return from;
  }
}

template <class Policy>
constexpr auto trigger_of(Policy const& policy) {
  auto const of_policy = compiled_trigger(policy.trigger);
  return with_own_trigger(
      policy.score, [&](auto const& own) { return both_trigger{of_policy, compiled_trigger(own)}; }, of_policy);
}

}  // namespace KVPOLICY_NAMESPACE::detail
