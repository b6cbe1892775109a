// SPDX-License-Identifier: Apache-2.0
// Rules: the members that the selecting verbs call.
#pragma once

#include <concepts>
#include <kvpolicy/core/contract/hook_checks.hpp>
#include <kvpolicy/core/scores.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The members that top_k and argmin call. For a rule that does not fit, a user reads a single error, from `check()`.
template <class R>
using rule_hooks =
    hooks<R, required_hook<hook::rule_budget, form_of_call<hook::rule_budget, R, exactly<int>, lane, int>()>,
          required_hook<hook::rule_triggers, form_of_call<hook::rule_triggers, R, exactly<bool>, int, int>()>,
          required_hook<hook::rule_forces, form_of_call<hook::rule_forces, R, exactly<bool>, entry>()>,
          optional_hook<hook::rule_candidates,
                        form_of_call<hook::rule_candidates, R, exactly<ordinal_range>, lane_entries const&>()>,
          optional_hook<hook::rule_scope, form_of_call<hook::rule_scope, R, exactly<budget_scope>>()>,
          optional_hook<hook::rule_floor, form_of_call<hook::rule_floor, R, exactly<int>, int>()>>;

/// Whether a rule picks a score: it has `picks(float, lane)` or `picks(float)`.
template <class R>
[[nodiscard]] KVPOLICY_HD bool picks_score(R const& rule, float score, [[maybe_unused]] lane const& of) {
  if constexpr (requires { rule.picks(score, of); }) {
    return rule.picks(score, of);
  } else {
    return rule.picks(score);
  }
}
template <class R>
concept picks_by_lane = requires(R const& rule, float score, lane const& of) {
  { rule.picks(score, of) } -> std::same_as<bool>;
};

/// The members that select_if calls.
template <class R>
using picking_rule_hooks =
    hooks<R,
          required_hook<hook::rule_picks,
                        picks_by_lane<R> ? hook_form::fits : form_of_call<hook::rule_picks, R, exactly<bool>, float>()>,
          required_hook<hook::rule_forces, form_of_call<hook::rule_forces, R, exactly<bool>, entry>()>>;

/// The call that map makes.
template <class F>
using map_hooks =
    hooks<F, required_hook<hook::map_call, form_of_call<hook::map_call, F, exactly<float>, float, entry>()>>;

}  // namespace detail

/// A rule decides which entries of a segment are kept: how many (`budget`), whether anything is dropped at all
/// (`triggers`), and which entries are kept regardless of their scores (`forces`). The members `candidates`, `scope`,
/// `floor`, `visit_forced` and `unobserved` are optional; see `ops::top_k`.
template <class R>
concept rule = detail::rule_hooks<R>::sound;

/// A rule that decides by the score alone, or by the score and its lane: `picks(float)` or `picks(float, lane)`, and
/// `forces(entry)`; see `ops::select_if`.
template <class R>
concept picking_rule = detail::picking_rule_hooks<R>::sound;

}  // namespace KVPOLICY_NAMESPACE
