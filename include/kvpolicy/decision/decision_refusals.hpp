// SPDX-License-Identifier: Apache-2.0
// Overloads of the calls of an eviction for policies that do not fit. Each gives one compile error that names the part.
#pragma once

#include <kvpolicy/core/plan.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/decision/decision_hooks.hpp>

namespace KVPOLICY_NAMESPACE {

/// @cond
template <executor Executor, detail::unsound_entry_decision Policy, class... Args>
state<Executor> make_state(Executor&, Policy const&, cache const&, Args const&...) {
  static_cast<void>(detail::entry_decision_hooks<Policy>::check());
  return detail::refused<state<Executor>>();
}

template <executor Executor, detail::unsound_entry_decision Policy, class... Args>
plan<Executor> make_plan(Executor&, Policy const&, cache const&, Args const&...) {
  static_cast<void>(detail::entry_decision_hooks<Policy>::check());
  return detail::refused<plan<Executor>>();
}

template <executor Executor, detail::unsound_entry_decision Policy, class... Args>
void observe(Executor&, Policy const&, Args const&...) {
  static_cast<void>(detail::entry_decision_hooks<Policy>::check());
}

template <executor Executor, detail::unsound_entry_decision Policy, class... Args>
void decide(Executor&, Policy const&, Args const&...) {
  static_cast<void>(detail::entry_decision_hooks<Policy>::check());
}
/// @endcond

}  // namespace KVPOLICY_NAMESPACE
