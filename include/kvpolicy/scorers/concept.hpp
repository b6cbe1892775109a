// SPDX-License-Identifier: Apache-2.0
// The concept of a scorer. Read this file first in this folder.
#pragma once

#include <concepts>
#include <kvpolicy/core/contract/hook_checks.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/parts/phase.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/parts/trigger.hpp>
#include <kvpolicy/recorders/recorder_hooks.hpp>

namespace KVPOLICY_NAMESPACE {

/// A scorer computes how much each entry is worth. It is a regular struct of parameters with these members:
///
/// - `using needs = kvpolicy::needs<...>` lists the signals that it reads.
/// - `static constexpr granularity decides` says whether each lane, each layer or each sequence decides as one.
/// - `void score(auto& exec, auto const& in, score_view out) const` writes the scores. It is written in verbs, so that
///   it runs on every backend.
///
/// These members are optional:
///
/// - `name` and `fields()` let it be printed.
/// - `forces()` returns a protection: the entries that it keeps whatever their score. A scorer that ranks candidates
///   may have `forces(in)` instead, which reads signals.
/// - `triggers()` returns a trigger, which must fire in addition to the policy's own before anything is dropped.
/// - `recorders()` returns a tuple of the recorders that must have observed the steps so far.
/// - `static constexpr bool ranks_candidates = true`: the scores depend on which entries compete. `out` then holds -inf
///   for every entry that the scorer or the policy forces, and 0 for the others (`key_domain::candidates`).
/// - `entry_scores(in)`: the score of an entry as a function of this entry, for a scorer to which it is one; `score`
///   then maps it. Decisions that drop one entry can do without a table of scores then (`ops::argmin_of`), and a device
///   promotes in fewer launches.
/// - `places()` and `rest_scores(in)`: the best entries by `score` get their places first. `places` returns how many, a
///   `first_places`, and `rest_scores` the function of an entry by which the others are ranked. See `put_first`.
/// - `static constexpr bool any_order = true`: `score` does not depend on the order of the entries (`lane_order`). A
///   scorer that has `entry_scores` need not say so.
/// - `check(call)`, or `check(call, shape)` if the model matters, refuses bad parameters. `refuse(exec, in)` refuses
///   signals whose error only shows in their data, before anything is written.
/// - `reads_budget()` is true if the scores depend on how many entries a lane may keep. `in.allowed` then has these
///   numbers, of lanes whose shares do not differ; where there is no budget, as in an admission, it is null.
/// - `safe_across_ranks()` is true if the scores are the same on all tensor-parallel ranks. A decision over heads of
///   several ranks needs that.
/// - `using verbs = kvpolicy::verbs<...>` lists the verbs that it runs and that need scratch memory, such as
///   `compute_attention_mass` (see ops/scratch.hpp). `make_plan` reserves scratch for them.
/// - `static constexpr bool rows_see_every_entry = true`: the positions of its query rows do not matter. A lane then
///   counts as observed as soon as it has a query row (`report::unobserved`).
/// - `static constexpr item scores_of = item::page` and `int page`: it scores pages of so many entries, for a
///   selection.
/// - `static constexpr phase when`: after which part of an engine's work it decides; see `phase`.
/// - `static constexpr bool prompts_only = true`: it decides once, at the end of a prompt, and nowhere else.
/// - `static constexpr budget_scope pools`: which lanes share the budget of a spec that does not say it. Only lists and
///   specs read this and the two before.
/// - `spare_rows(lanes, shape)` returns how many additional rows of floats it needs in a plan. Each is as long as a row
///   of scores.
///
/// Laws: the same input gives the same scores; `score` writes only to `out`; higher scores are kept; a score may be
/// NaN, which ranks below every number.
template <class S>
concept scorer = std::regular<S> && requires {
  typename S::needs;
  { S::decides } -> std::convertible_to<granularity>;
} && detail::form_of_function<detail::hook::scorer_score, S>() == detail::hook_form::fits;

namespace detail {

template <class Score>
concept says_whether_it_ranks = !hook::scorer_ranks_candidates::is_own_data<Score> &&
                                requires { typename std::bool_constant<Score::ranks_candidates>; };

/// True for a scorer whose scores depend on which entries compete.
template <class Score>
inline constexpr bool ranks_candidates = [] {
  if constexpr (says_whether_it_ranks<Score>) {
    return bool{Score::ranks_candidates};
  } else {
    return false;
  }
}();

/// True for a scorer that says that the order of entries does not matter.
template <class Score>
concept says_whether_any_order =
    !hook::scorer_any_order::is_own_data<Score> && requires { typename std::bool_constant<Score::any_order>; };
template <class Score>
inline constexpr bool reads_any_order = [] {
  if constexpr (says_whether_any_order<Score>) {
    return bool{Score::any_order};
  } else {
    return false;
  }
}();

/// True for a scorer of pages. Every other scorer scores tokens.
template <class Score>
concept scores_pages =
    !hook::scorer_scores_of::is_own_data<Score> && requires { requires Score::scores_of == item::page; };
template <class Score>
concept says_what_it_scores = !hook::scorer_scores_of::is_own_data<Score> &&
                              requires { typename std::integral_constant<item, Score::scores_of>; };

template <class Score>
concept says_who_decides = requires {
  { Score::decides } -> std::convertible_to<granularity>;
};

struct some_recorders {
  template <class... Recorders>
  static constexpr bool is_tuple(std::tuple<Recorders...> const*) {
    return true;
  }
  static constexpr bool is_tuple(void const*) { return false; }
  template <class Result>
  static constexpr bool accepts = is_tuple(static_cast<std::remove_cvref_t<Result>*>(nullptr));
};

/// The form of `forces` before a decision. A scorer that ranks candidates may take the signals as an argument, whose
/// type is not known yet.
template <class S>
consteval hook_form form_of_forces() {
  constexpr hook_form plain = form_of_call<hook::scorer_forces, S, a_protection>();
  return ranks_candidates<S> && plain == hook_form::other_parameters ? hook_form::fits : plain;
}

/// The requirements on a scorer that can be checked before the executor and the signals are known.
template <class S>
using scorer_hooks = part_hooks<
    S, law<hook::score_is_number, !std::is_arithmetic_v<S>>,
    required_hook<hook::scorer_score, form_of_function<hook::scorer_score, S>()>,
    required_hook<hook::scorer_needs, form_of_type<hook::scorer_needs, S, says_what_it_reads<S>>()>,
    required_hook<hook::scorer_decides, form_of_constant<hook::scorer_decides, S, says_who_decides<S>>()>,
    optional_hook<hook::scorer_ranks_candidates,
                  form_of_constant<hook::scorer_ranks_candidates, S, says_whether_it_ranks<S>>()>,
    optional_hook<hook::scorer_scores_of, form_of_constant<hook::scorer_scores_of, S, says_what_it_scores<S>>()>,
    optional_hook<hook::scorer_any_order, form_of_constant<hook::scorer_any_order, S, says_whether_any_order<S>>()>,
    optional_hook<hook::scorer_entry_scores, form_of_function<hook::scorer_entry_scores, S>()>,
    optional_hook<hook::scorer_forces, form_of_forces<S>()>,
    optional_hook<hook::scorer_triggers, form_of_call<hook::scorer_triggers, S, a_trigger>()>,
    optional_hook<hook::scorer_recorders, form_of_call<hook::scorer_recorders, S, some_recorders>()>,
    optional_hook<hook::scorer_check,
                  form_of_either(form_of_call<hook::scorer_check, S, anything, char const*, shape const&>(),
                                 form_of_call<hook::scorer_check, S, anything, char const*>())>,
    optional_hook<hook::scorer_refuse, form_of_function<hook::scorer_refuse, S>()>,
    optional_hook<hook::scorer_safe_across_ranks, form_of_call<hook::scorer_safe_across_ranks, S, exactly<bool>>()>,
    optional_hook<hook::scorer_spare_rows,
                  form_of_call<hook::scorer_spare_rows, S, exactly<int>, lanes const&, shape const&>()>>;

/// Checks a scorer's recorders, after the scorer itself. A part that does not fit causes one error.
template <class Recorders>
struct hooks_of_recorders;
template <class... Recorders>
struct hooks_of_recorders<std::tuple<Recorders...>> {
  static constexpr bool sound = (recorder_hooks<Recorders>::sound && ...);
  static consteval bool check() { return (recorder_hooks<Recorders>::check() && ...); }
};
/// True of a scorer around another one that does not fit itself: what is wrong is said once, of the one inside.
template <class S>
concept wraps_misfit = requires { requires !scorer_hooks<typename S::wraps>::sound; };

template <class S>
consteval bool check_scorer() {
  if constexpr (wraps_misfit<S>) {
    return check_scorer<typename S::wraps>();
  } else {
    static_cast<void>(scorer_hooks<S>::check());
    if constexpr (scorer_hooks<S>::sound) {
      return hooks_of_recorders<decltype(recorders_of(std::declval<S const&>()))>::check();
    }
    return true;
  }
}
template <class S>
inline constexpr bool is_sound_scorer = [] {
  if constexpr (scorer_hooks<S>::sound) {
    return hooks_of_recorders<decltype(recorders_of(std::declval<S const&>()))>::sound;
  } else {
    return false;
  }
}();

/// These concepts recognise a policy by its members, even if a member does not fit.
template <class P>
concept has_score = requires(P const& policy) { policy.score; };
template <class P>
concept says_dense_layers = requires(P const& policy) { policy.dense_layers; };
template <class P>
concept has_protection = requires(P const& policy) { policy.protect; };
template <class P>
concept looks_like_selection =
    has_score<P> && (says_dense_layers<P> || (!has_protection<P> && requires(P const& policy) {
                       requires scores_pages<std::remove_cvref_t<decltype(policy.score)>>;
                     }));

/// Accepts the score of an entry as a function of it.
struct a_score_of_entry {
  template <class Result>
  static constexpr bool accepts = requires(std::remove_cvref_t<Result> const& made, float old, entry at) {
    { made(old, at) } -> std::same_as<float>;
  };
};

/// The requirements on a scorer that can be checked once the executor and the signals are known.
template <class S, class Executor, class SignalSet, class Out = score_view&>
using deciding_hooks = hooks<
    S,
    required_hook<hook::scorer_score,
                  form_of_call<hook::scorer_score, S, anything, Executor&, SignalSet const&, Out>()>,
    optional_hook<hook::scorer_forces,
                  form_of_either(form_of_call<hook::scorer_forces, S, a_protection, SignalSet const&>(),
                                 form_of_call<hook::scorer_forces, S, a_protection>())>,
    optional_hook<hook::scorer_entry_scores,
                  form_of_call<hook::scorer_entry_scores, S, a_score_of_entry, SignalSet const&>()>,
    optional_hook<hook::scorer_refuse, form_of_call<hook::scorer_refuse, S, anything, Executor&, SignalSet const&>()>>;

}  // namespace detail

}  // namespace KVPOLICY_NAMESPACE
