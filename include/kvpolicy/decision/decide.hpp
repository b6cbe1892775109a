// `decide` chooses the entries that each lane keeps.
#pragma once

#include <kvpolicy/core/check_counts.hpp>
#include <kvpolicy/decision/bag.hpp>
#include <kvpolicy/decision/make.hpp>
#include <kvpolicy/decision/observe.hpp>
#include <kvpolicy/decision/refusals.hpp>
#include <kvpolicy/ops/map.hpp>

namespace KVPOLICY_NAMESPACE {

/// True if every signal that the policy's scorer needs is given or recorded, as `decide` requires. Generic code can
/// test this before it calls `decide`.
template <class Policy, class Given, class Executor>
concept decides = entry_decision<Policy> &&
                  detail::has_all<detail::bag_of<Policy, Given, Executor>>(typename detail::score_of<Policy>::needs{});

namespace detail {

/// Decides, after the caller has checked everything but the data in memory.
template <executor Executor, class Policy, class Bag>
void decide_checked(Executor& exec, Policy const& policy, Bag const& all_signals, shape const& model,
                    plan<Executor>& into) {
  using score_type = score_of<Policy>;
  score_view scores = into.scores(all_signals.lanes);
  keep_set keep = into.keep_storage(all_signals.lanes);
  if constexpr (std::same_as<decltype(pick_of(policy)), lowest_one>) keep.lists = side::dropped;
  refuse_unfit_lanes<typename Executor::backend>("decide", scores);
  if constexpr (requires { policy.score.refuse(exec, all_signals); }) policy.score.refuse(exec, all_signals);
  into.withdraw();  // everything is checked: if anything throws from here on, the plan holds no decision
  if constexpr (!ranks_candidates<score_type>) policy.score.score(exec, all_signals, scores);
  with_protection(policy.protect, [&](auto const& protect) {
    auto const rule = rule_of(policy, protect, all_signals, model, into.entry_bytes());
    if constexpr (ranks_candidates<score_type>) {
      ops::map(exec, scores, zero_if_candidate{rule});
      policy.score.score(exec, all_signals, scores);
    }
    picking_verb<Policy>{}(exec, scores, rule, keep);
  });
  into.publish(keep);
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
    check_reserved("decide", exec, scratch_to_decide<typename Executor::backend, Policy>(state.model(), in.lanes));
    if constexpr (!rows_see_every_entry<score_type>) {
      refuse_rows<typename Executor::backend>("decide", typename score_type::needs{}, in);
    }
    counting_signals<Given> const counted("decide", exec, in, into.counted());
    decide_checked(exec, policy, bag_type(counted.get(), recorders, state), state.model(), into);
  }
}

}  // namespace detail

/// Decides which entries the lanes of `in` keep. `apply` then carries the decision out.
///
/// - out: `into` holds a keep set with the ascending ordinals of every segment: those that are kept, or with
///   `lowest_one` the one that is dropped. Nothing but the plan is written.
/// - throws: `invalid_argument` if the plan or the state was made for other lanes, if the policy is not sound, if a
///   count is out of its limits, or if lanes that decide together hold different tokens. Then nothing was changed. The
///   comparison of tokens reads each position once. If a functor of the policy throws, the exception passes through and
///   the plan holds no decision.
template <executor Executor, entry_decision Policy, class... Given>
void decide(Executor& exec, Policy const& policy, signals<Given...> const& in, state<Executor> const& state,
            plan<Executor>& into) {
  detail::decide_given(exec, policy, in, state, into);
}

}  // namespace KVPOLICY_NAMESPACE
