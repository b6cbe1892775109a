// The calls of a selection: make_state, make_plan, observe, select.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/page_scores.hpp>
#include <kvpolicy/ops/top_k.hpp>
#include <kvpolicy/recorders/recording.hpp>
#include <kvpolicy/selection/plan.hpp>
#include <kvpolicy/selection/refusals.hpp>
#include <kvpolicy/selection/selection.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

template <class Policy>
void check_selection(char const* call, Policy const& policy, shape const& model) {
  check_part(call, policy.score, model);
  check_part(call, policy.budget);
  expects(policy.score.page >= 1, call, "score.page", policy.score.page, "a page holds at least one entry");
  expects(policy.dense_layers >= 0, call, "dense_layers", policy.dense_layers, "a count cannot be negative");
  budget_scope const scope = scope_of(policy.budget);
  expects(scope == budget_scope::lane, call, "budget.scope", to_string(scope), "every lane reads for itself");
}

/// Scratch of a worker for a selection.
template <class Backend>
std::size_t selection_scratch(shape const& model, lanes const& who) {
  return std::max({scratch_of_verb<ops::extend_bounds_t, Backend>(model, who),
                   scratch_of_verb<ops::page_scores_t, Backend>(model, who),
                   scratch_of_verb<ops::top_k_t, Backend>(model, who)});
}

template <executor Executor>
void check_selection_scratch(char const* call, Executor const& exec, state<Executor> const& held) {
  expects(exec.reserved() >= selection_scratch<typename Executor::backend>(held.model(), held.who()), call, "exec",
          "an executor without scratch for this batch", "plan and state are made on the executor that runs them");
}

/// The pages that `told` and the policy choose, whatever state it was recorded in.
template <executor Executor, selection_policy Policy, class Told>
void choose(Executor& exec, Policy const& policy, Told told, shape const& model, selection_plan<Executor>& into) {
  lanes const who = told.who;
  lanes const pages = into.pages_of(who);
  keep_set const chosen = into.room(pages);
  if constexpr (requires { policy.score.refuse(exec, told); }) policy.score.refuse(exec, told);
  ops::count_pages(exec, who, policy.score.page, pages);
  int const first = std::clamp(policy.dense_layers, who.layer_begin, who.layer_end);
  if (first < who.layer_end) {
    told.who = who.layers_only(first, who.layer_end);
    policy.score.score(exec, told, into.scores(pages.layers_only(first, who.layer_end)));
  }
  selection_rule const rule{in_entries(policy.budget, model, into.entry_bytes()), policy.score.page,
                            policy.dense_layers};
  ops::top_k(exec, into.scores(pages), rule, chosen);
  into.publish(chosen);
}

}  // namespace detail

/// The state of one batch: the columns of the selection's recorders. One state serves several policies of a cache only
/// if it was made for them together: appliers, append and truncate keep true what they are given.
///
/// - throws: `invalid_argument` if the cache or the policy is not sound.
template <executor Executor, selection_policy Policy>
[[nodiscard]] state<Executor> make_state(Executor& exec, Policy const& policy, cache const& in) {
  detail::check_selection("make_state", policy, in.shape);
  detail::check_cache("make_state", in);
  state<Executor> made = detail::state_of(exec, recorders_of(policy.score), in);
  exec.reserve(detail::selection_scratch<typename Executor::backend>(in.shape, in.who));
  return made;
}

/// The plan of one batch. Nothing allocates after this while counts stay below the bound.
///
/// - throws: as make_state. Memory: 8 bytes x lanes x pages.
template <executor Executor, selection_policy Policy>
[[nodiscard]] selection_plan<Executor> make_plan(Executor& exec, Policy const& policy, cache const& in) {
  detail::check_selection("make_plan", policy, in.shape);
  detail::check_cache("make_plan", in);
  exec.reserve(detail::selection_scratch<typename Executor::backend>(in.shape, in.who));
  return selection_plan<Executor>(exec, in.who, policy.score.page, entry_bytes(in));
}

/// Shows signals to the selection's recorders: after every forward, and after every apply. Writes state only, from
/// committed entries only.
///
/// - throws: `invalid_argument` if the state was made for other lanes or another policy.
template <executor Executor, selection_policy Policy, class... Given>
void observe(Executor& exec, Policy const& policy, signals<Given...> const& in, state<Executor>& held) {
  detail::check_same_lanes("observe", "signals.who", in.who, held.who());
  in.check("observe", held.model());
  detail::check_selection("observe", policy, held.model());
  auto const recorders = recorders_of(policy.score);
  detail::check_state("observe", held, recorders);
  detail::check_selection_scratch("observe", exec, held);
  detail::record(exec, recorders, in, held);
}

/// Chooses the pages that the lanes of `in` read in this step, of one layer or of several. Reads only, apart from the
/// plan.
///
/// - out: `into.keep()`, a keep set of pages, a lane a segment, ascending: as many whole pages as the budget's tokens
///   make, at least one, the last page always among them. A lane with no more pages than that, and a lane of a dense
///   layer, lists all; one without entries none. Entries in flight are in no page: an engine reads them anyway.
/// - ties go to the lower page. A NaN ranks below every number and is counted; a page that the bounds do not speak of
///   in full is read before others (see `ops::page_scores`).
/// - cost: that of the scorer and of top_k over pages. Nothing allocates.
/// - throws: `invalid_argument` if plan or state was made for other lanes or another page, or the policy is not sound.
template <executor Executor, selection_policy Policy, class... Given>
void select(Executor& exec, Policy const& policy, signals<Given...> const& in, state<Executor> const& held,
            selection_plan<Executor>& into) {
  using score_type = std::remove_cvref_t<decltype(policy.score)>;
  auto const recorders = recorders_of(policy.score);
  using bag_type = bag<signals<Given...>, std::remove_cvref_t<decltype(recorders)>, state<Executor>>;
  if constexpr (detail::signals_complete<score_type, bag_type>(typename score_type::needs{}) &&
                detail::fits<detail::deciding_hooks<score_type, Executor, bag_type, score_view>>()) {
    detail::check_selection("select", policy, held.model());
    detail::check_same_lanes("select", "signals.who", in.who, into.who());
    detail::check_same_lanes("select", "signals.who", in.who, held.who());
    in.check("select", held.model());
    expects(into.page() == policy.score.page, "select", "plan.page", into.page(),
            [&] { return "the policy reads pages of " + std::to_string(policy.score.page); });
    detail::check_state("select", held, recorders);
    detail::check_selection_scratch("select", exec, held);
    detail::choose(exec, policy, bag_type(in, recorders, held), held.model(), into);
  }
}

}  // namespace KVPOLICY_NAMESPACE
