// SPDX-License-Identifier: Apache-2.0
// The requirements on the parts of a policy, and the compile error for a policy that does not fit.
#pragma once

#include <kvpolicy/parts/budget.hpp>
#include <kvpolicy/parts/pick.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/parts/trigger.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The parts of an eviction or an admission. `check` gives a compile error that names the part that does not fit.
template <class Score, class Protect, class Budget, class Pick, class Trigger>
struct entry_decision_parts {
  using scores = hooks<Score, law<hook::scores_tokens, !scores_pages<Score>>>;
  static constexpr bool sound = is_sound_scorer<Score> && scores::sound && protection_hooks<Protect>::sound &&
                                budget_hooks<Budget>::sound && pick_hooks<Pick>::sound && trigger_hooks<Trigger>::sound;

  static consteval bool check() {
    return check_scorer<Score>() && scores::check() && protection_hooks<Protect>::check() &&
           budget_hooks<Budget>::check() && pick_hooks<Pick>::check() && trigger_hooks<Trigger>::check();
  }
};

/// A policy's pick, or `top` if it has none.
template <class Policy>
constexpr decltype(auto) pick_of(Policy const& policy) {
  if constexpr (requires { policy.pick; }) {
    return (policy.pick);
  } else {
    return top{};
  }
}

/// The members of a policy, which may be a type of the user.
template <class P>
using entry_decision_members =
    hooks<P, required_hook<hook::policy_score, form_of_data<hook::policy_score, P>()>,
          required_hook<hook::policy_protect, form_of_data<hook::policy_protect, P>()>,
          required_hook<hook::policy_budget, form_of_data<hook::policy_budget, P>()>,
          required_hook<hook::policy_trigger, form_of_data<hook::policy_trigger, P>()>,
          optional_hook<hook::policy_pick, form_of_data<hook::policy_pick, P>()>,
          law<hook::policy_no_picks, form_of_data<hook::policy_pick, P>() != hook_form::absent ||
                                         form_of_data<hook::policy_picks, P>() == hook_form::absent>,
          optional_hook<hook::policy_check, form_of_call<hook::policy_check, P, anything, char const*>()>>;

template <class P, bool HasMembers = entry_decision_members<P>::sound>
struct entry_decision_hooks {
  static constexpr bool sound = false;
  static consteval bool check() { return entry_decision_members<P>::check(); }
};
template <class P>
struct entry_decision_hooks<P, true>
    : entry_decision_parts<std::remove_cvref_t<decltype(P::score)>, std::remove_cvref_t<decltype(P::protect)>,
                           std::remove_cvref_t<decltype(P::budget)>,
                           std::remove_cvref_t<decltype(pick_of(std::declval<P const&>()))>,
                           std::remove_cvref_t<decltype(P::trigger)>> {};

template <class P>
inline constexpr bool is_sound_entry_decision = entry_decision_hooks<P>::sound;

/// A policy that is not a selection and does not fit. The calls have overloads for it that explain the error.
template <class P>
concept unsound_entry_decision = has_score<P> && !looks_like_selection<P> && !is_sound_entry_decision<P>;

/// The parts of a selection. `check` gives a compile error that names the part that does not fit.
template <class Score, class Budget>
struct page_decision_parts {
  using pages = hooks<Score, law<hook::scores_pages, scores_pages<Score>>,
                      required_hook<hook::scorer_page, form_of_data<hook::scorer_page, Score>()>>;
  static constexpr bool sound = is_sound_scorer<Score> && pages::sound && budget_hooks<Budget>::sound;
  static consteval bool check() {
    static_cast<void>(check_scorer<Score>());
    if constexpr (is_sound_scorer<Score>) static_cast<void>(pages::check());
    return budget_hooks<Budget>::check();
  }
};

/// The members of a selection, which may be a type of the user.
template <class P>
using page_decision_members =
    hooks<P, required_hook<hook::policy_score, form_of_data<hook::policy_score, P>()>,
          required_hook<hook::policy_budget, form_of_data<hook::policy_budget, P>()>,
          required_hook<hook::policy_dense_layers, form_of_data<hook::policy_dense_layers, P>()>>;

template <class P, bool HasMembers = page_decision_members<P>::sound>
struct page_decision_hooks {
  static constexpr bool sound = false;
  static consteval bool check() { return page_decision_members<P>::check(); }
};
template <class P>
struct page_decision_hooks<P, true>
    : page_decision_parts<std::remove_cvref_t<decltype(P::score)>, std::remove_cvref_t<decltype(P::budget)>> {};

template <class P>
inline constexpr bool is_sound_page_decision = page_decision_hooks<P>::sound;
template <class P>
concept unsound_page_decision = looks_like_selection<P> && !is_sound_page_decision<P>;

}  // namespace KVPOLICY_NAMESPACE::detail
