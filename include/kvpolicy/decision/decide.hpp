// Which entries stay: `decide`.
#pragma once

#include <kvpolicy/core/check_counts.hpp>
#include <kvpolicy/decision/bag.hpp>
#include <kvpolicy/decision/make.hpp>
#include <kvpolicy/decision/observe.hpp>
#include <kvpolicy/decision/refusals.hpp>
#include <kvpolicy/ops/map.hpp>

namespace KVPOLICY_NAMESPACE {

/// True iff `decide(exec, policy, in, state, plan)` compiles: every signal is given or recorded. For code that must
/// ask.
template <class Policy, class Given, class Executor>
concept decides = entry_decision<Policy> &&
                  detail::has_all<detail::bag_of<Policy, Given, Executor>>(typename detail::score_of<Policy>::needs{});

namespace detail {

/// What a decision does once nothing but data can be wrong.
template <executor Executor, class Policy, class Bag>
void decide_checked(Executor& exec, Policy const& policy, Bag const& told, shape const& model, plan<Executor>& into) {
  using score_type = score_of<Policy>;
  score_view scores = into.scores(told.lanes);
  keep_set made = into.keep_storage(told.lanes);
  if constexpr (std::same_as<decltype(pick_of(policy)), lowest_one>) made.lists = side::dropped;
  refuse_unfit_lanes<typename Executor::backend>("decide", scores);
  if constexpr (requires { policy.score.refuse(exec, told); }) policy.score.refuse(exec, told);
  into.withdraw();  // all is checked: what throws from here on leaves a plan without a decision
  if constexpr (!ranks_candidates<score_type>) policy.score.score(exec, told, scores);
  with_protection(policy.protect, [&](auto const& protect) {
    auto const rule = rule_of(policy, protect, told, model, into.entry_bytes());
    if constexpr (ranks_candidates<score_type>) {
      ops::map(exec, scores, zero_if_candidate{rule});
      policy.score.score(exec, told, scores);
    }
    picking_verb<Policy>{}(exec, scores, rule, made);
  });
  into.publish(made);
}

template <executor Executor, class Policy, class Given>
void decide_given(Executor& exec, Policy const& policy, Given const& in, state<Executor> const& state,
                  plan<Executor>& into) {
  using score_type = score_of<Policy>;
  auto const recorders = recorders_of(policy.score);
  using bag_type = bag_of<Policy, Given, Executor>;
  if constexpr (signals_complete<score_type, bag_type>(typename score_type::needs{}) &&
                fits<deciding_hooks<score_type, Executor, bag_type>>()) {
    check_policy("decide", policy, state.model());
    check_same_lanes("decide", "signals.lanes", in.lanes, into.lanes());
    check_same_lanes("decide", "signals.lanes", in.lanes, state.lanes());
    in.check("decide", state.model());
    check_plan("decide", exec, policy, in.lanes, state.model(), into);
    check_state("decide", state, recorders);
    check_reserved("decide", exec, scratch_to_decide<typename Executor::backend, Policy>(state.model(), state.lanes()));
    decide_checked(exec, policy, bag_type(in, recorders, state), state.model(), into);
  }
}

}  // namespace detail

/// Decides for the lanes of `in`: an ascending keep set for every segment, in `into`. Reads only, apart from the plan.
///
/// - throws: `invalid_argument` if the plan or the state was made for other lanes, the policy is not sound, a count is
///   out of its limits, or lanes that decide together hold other tokens: then nothing was changed. Positions are read
///   once to tell. What a functor of the policy throws: then the plan holds no decision.
template <executor Executor, entry_decision Policy, class... Given>
void decide(Executor& exec, Policy const& policy, signals<Given...> const& in, state<Executor> const& state,
            plan<Executor>& into) {
  detail::decide_given(exec, policy, in, state, into);
}

}  // namespace KVPOLICY_NAMESPACE
