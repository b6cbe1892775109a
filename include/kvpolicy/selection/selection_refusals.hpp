// SPDX-License-Identifier: Apache-2.0
// Overloads of the calls of a selection for policies that do not fit. Each gives one compile error that names the part.
#pragma once

#include <kvpolicy/core/state.hpp>
#include <kvpolicy/selection/plan.hpp>
#include <kvpolicy/selection/selection.hpp>

namespace KVPOLICY_NAMESPACE {

/// @cond
template <executor Executor, detail::unsound_page_decision Policy>
state<Executor> make_state(Executor&, Policy const&, cache const&) {
  static_cast<void>(detail::page_decision_hooks<Policy>::check());
  return detail::refused<state<Executor>>();
}

template <executor Executor, detail::unsound_page_decision Policy>
selection_plan<Executor> make_plan(Executor&, Policy const&, cache const&) {
  static_cast<void>(detail::page_decision_hooks<Policy>::check());
  return detail::refused<selection_plan<Executor>>();
}

template <executor Executor, detail::unsound_page_decision Policy, class... Args>
void observe(Executor&, Policy const&, Args const&...) {
  static_cast<void>(detail::page_decision_hooks<Policy>::check());
}

template <executor Executor, class Policy, class... Args>
  requires(detail::has_score<Policy> && !detail::is_sound_page_decision<Policy>)
void select_pages(Executor&, Policy const&, Args const&...) {
  static_cast<void>(detail::page_decision_hooks<Policy>::check());
}
/// @endcond

}  // namespace KVPOLICY_NAMESPACE
