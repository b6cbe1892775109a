// SPDX-License-Identifier: Apache-2.0
// `decide` chooses the entries that each lane keeps.
#pragma once

#include <algorithm>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/signal_set.hpp>
#include <kvpolicy/decision/block_rule.hpp>
#include <kvpolicy/decision/decision_refusals.hpp>
#include <kvpolicy/decision/first.hpp>
#include <kvpolicy/decision/make.hpp>
#include <kvpolicy/decision/observe.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/map_lanes.hpp>

namespace KVPOLICY_NAMESPACE {

/// True if every signal that the policy's scorer needs is given or recorded, as `decide` requires. Generic code can
/// test this before it calls `decide`.
template <class Policy, class Given, class Executor>
concept can_decide =
    entry_decision<Policy> &&
    detail::has_all<detail::signal_set_of<Policy, Given, Executor>>(typename detail::score_of<Policy>::needs{});

namespace detail {

/// A scorer whose score of an entry is a function of this entry: it has `entry_scores(in)`.
template <class Score, class SignalSet>
concept scores_by_entry = requires(Score const& score, SignalSet const& in) { score.entry_scores(in); };

/// True if `argmin_of` can decide, so that no table of scores is written: the pick is `lowest_one`, each lane decides
/// alone and has a fixed budget, the scorer has `entry_scores`, and the engine gives `lanes.order`.
template <class Policy, class SignalSet>
bool decides_by_entry(score_view const& scores) {
  return std::same_as<std::remove_cvref_t<decltype(pick_of(std::declval<Policy const&>()))>, lowest_one> &&
         !allots<std::remove_cvref_t<decltype(std::declval<Policy const&>().budget)>> &&
         scores_by_entry<score_of<Policy>, SignalSet> && scores.decides == granularity::lane &&
         scores.lanes.order.data != nullptr;
}

/// Refuses entries that are out of order, unless the policy drops the lowest one and its parts do not read the order.
template <class Backend, class Policy, class SignalSet>
void refuse_order_that_is_read(resolved<Policy> const& of, SignalSet const& in, lanes const& batch) {
  if (batch.order.data == nullptr) return;
  bool is_unread = scores_by_entry<score_of<Policy>, SignalSet> || of.scorer.any_order;
  is_unread = is_unread && of.drops_one;
  with_forced(of.policy, in, [&]<class Forces, class Protect>(Forces const&, Protect const&) {
    is_unread = is_unread && has_candidates<Forces> && has_candidates<Protect>;
  });
  if (!is_unread) refuse_out_of_order<Backend>("decide", batch, "this policy");
}

/// Writes what a rule keeps, after the scorer has run.
template <executor Executor, class Policy, class SignalSet, class Rule>
void pick_by_rule(Executor& exec, resolved<Policy> const& of, SignalSet const& all_signals, Rule const& rule,
                  score_view const& scores, plan<Executor>& into, keep_set const& keep) {
  Policy const& policy = of.policy;
  using pick_type = decltype(rule.pick);
  with_first_of(policy.score, [&]<class First>(First const& first) {
    if constexpr (std::same_as<pick_type, top>) {
      put_first(exec, first, all_signals, rule, scores, keep);
    } else {
      static_assert(erased<First>, "kvpolicy: put_first needs the pick top");
    }
  });
  if constexpr (counts_before_picking<score_of<Policy>, pick_type>) {
    pick_blocks(exec, of, all_signals, rule, scores, into.kept(), keep);
  } else {
    picking_verb<pick_type>{}(exec, scores, rule, keep);
  }
}

/// How many entries a lane may keep, or how many it might if shares did not differ.
template <class Budget>
struct usual_budget {
  Budget limit;
  KVPOLICY_HD int operator()(lane_entries const& of) const {
    if constexpr (requires { limit.average_of(of.lane, of.count); }) {
      return limit.average_of(of.lane, of.count);
    } else {
      return limit(of.lane, of.count);
    }
  }
};

/// Finds the entry with the lowest score by a function of an entry, without a table of scores. False if the pick is not
/// `lowest_one`, or the scorer has no `entry_scores`.
template <class Executor, class Score, class SignalSet, class Rule>
bool dropped_by_entry([[maybe_unused]] Executor& exec, [[maybe_unused]] Score const& score,
                      [[maybe_unused]] SignalSet const& in, [[maybe_unused]] Rule const& rule,
                      [[maybe_unused]] score_view const& scores, [[maybe_unused]] keep_set const& keep) {
  if constexpr (scores_by_entry<Score, SignalSet> && std::same_as<decltype(rule.pick), lowest_one>) {
    ops::argmin_of(exec, scores, score.entry_scores(in), rule, keep);
    return true;
  } else {
    return false;
  }
}

/// How many entries each lane may keep, for a scorer that reads it. `kept` is memory for a number of each lane.
template <class Executor, class Budget>
by_lane<int const> allowed_of_lanes(Executor& exec, Budget const& usual, lanes const& batch, by_lane<int> const& kept) {
  ops::map_lanes(exec, batch, usual_budget<Budget>{usual}, kept);
  return {kept.data, kept.sequence, kept.layer, kept.head, kept.slots};
}

/// The memory of the plan behind the spare rows of its scorer; null if there is none.
template <class Policy>
float* spare_behind_scorer(Policy const& policy, score_view const& scores, shape const& model) {
  if (scores.spare == nullptr) return nullptr;
  return scores.spare + std::int64_t{spare_rows(policy.score, scores.lanes, model)} * scores.lanes.capacity;
}

/// Scores the entries that compete under a rule, for a scorer that ranks candidates: the scores of others are -inf.
template <executor Executor, class Policy, class SignalSet, class Rule>
void score_candidates(Executor& exec, resolved<Policy> const& of, SignalSet const& all_signals, Rule const& rule,
                      score_view const& scores) {
  if constexpr (may_rank_candidates<score_of<Policy>>) {
    if (!of.scorer.ranks_candidates) return;
    ops::map(exec, scores, zero_if_candidate{rule});
    of.policy.score.score(exec, all_signals, scores);
  }
}

/// Decides, after the caller has checked everything but the data in memory. `epochs` are those of the state, which
/// `apply` will compare.
///
/// The usual policy takes three steps: its `score`, `with_rule`, and the verb of its pick. All else is for budgets that
/// allot shares, for scorers that rank candidates or read the budget, and for `lowest_one`.
template <executor Executor, class Policy, class SignalSet>
void decide_checked(Executor& exec, resolved<Policy> const& of, SignalSet all_signals, shape const& model,
                    plan<Executor>& into, by_lane<std::uint64_t> const& epochs = {}) {
  using score_type = score_of<Policy>;
  Policy const& policy = of.policy;
  score_view scores = into.scores(all_signals.lanes);
  keep_set keep = into.keep_storage(all_signals.lanes);
  keep.epochs = epochs;
  if (of.drops_one) keep.lists = side::dropped;
  check_lanes_of_decision<typename Executor::backend>("decide", scores);
  refuse_order_that_is_read<typename Executor::backend>(of, all_signals, scores.lanes);
  refuse_data(policy.score, exec, all_signals);
  into.withdraw();  // everything is checked: if anything throws from here on, the plan holds no decision
  auto const usual = of.limit(model, into.entry_bytes());
  if constexpr (may_read_budget<score_type> && evicts<Policy>) {
    if (of.scorer.reads_budget) all_signals.allowed = allowed_of_lanes(exec, usual, scores.lanes, into.kept());
  }
  bool const by_entry = decides_by_entry<Policy, SignalSet>(scores);
  if (!of.scorer.ranks_candidates && !by_entry) policy.score.score(exec, all_signals, scores);
  // What `top_k` keeps under another budget, for an allotter. The pick overwrites the keep set afterwards.
  auto const keep_under = [&](auto const& budget, forced_by forced) {
    with_rule(policy, all_signals, budget, forced, [&](auto const& rule) {
      if constexpr (std::same_as<std::remove_cvref_t<decltype(rule.pick)>, top>) ops::top_k(exec, scores, rule, keep);
    });
    return keep;
  };
  float* const spare = spare_behind_scorer(policy, scores, model);
  auto const limit = allotted(exec, usual, all_signals, scores, into.shares(), spare, keep_under);
  with_rule(policy, all_signals, limit, [&](auto const& rule) {
    score_candidates(exec, of, all_signals, rule, scores);
    if (!by_entry || !dropped_by_entry(exec, policy.score, all_signals, rule, scores, keep)) {
      pick_by_rule(exec, of, all_signals, rule, scores, into, keep);
    }
  });
  into.publish(keep);
  if constexpr (requires { exec.decided(policy, into); }) exec.decided(policy, into);
}

template <executor Executor, class Policy, class Given>
void decide_given(Executor& exec, Policy const& policy, Given const& in, state<Executor> const& state,
                  plan<Executor>& into) {
  using backend = typename Executor::backend;
  using score_type = score_of<Policy>;
  auto const recorders = recorders_of(policy.score);
  using signal_set_type = signal_set_of<Policy, Given, Executor>;
  if constexpr (signals_complete<score_type, signal_set_type>(typename score_type::needs{}) &&
                fits<deciding_hooks<score_type, Executor, signal_set_type>>()) {
    sole_use const in_use("decide", exec);
    check_policy("decide", policy, state.model());
    check_same_lanes("decide", "signals.lanes", in.lanes, into.lanes());
    check_same_lanes("decide", "signals.lanes", in.lanes, state.lanes());
    in.check("decide", state.model());
    resolved<Policy> const of = resolve(policy);
    check_plan("decide", exec, of, in.lanes, state.model(), into);
    check_state("decide", state, recorders);
    check_reserved("decide", exec, scratch_to_decide<backend>(policy, state.model(), in.lanes));
    refuse_given<backend>("decide", policy.score, in);
    refuse_smaller<backend>("decide", in);
    counting_signals<Given> const counted("decide", exec, in, into.counted());
    decide_checked(exec, of, signal_set_type(counted.get(), recorders, state), state.model(), into,
                   state.epochs(in.lanes.slots));
  }
}

}  // namespace detail

/// Decides which entries the lanes of `in` keep. `apply` then carries the decision out.
///
/// - out: `into` holds a keep set with the ascending ordinals of every segment: those that are kept, or with
///   `lowest_one` the one that is dropped. Nothing but the plan is written. With `lowest_one` and `lanes.order`, a
///   scorer that has `entry_scores` leaves no scores in the plan.
/// - throws: `invalid_argument` if the plan or the state was made for other lanes, if the policy is not sound, if a
///   count is out of its limits, if lanes that decide together hold different tokens, or if entries are out of order
///   and a part of the policy reads their order. Then nothing was changed. The comparison of tokens reads each position
///   once. If a functor of the policy throws, the exception passes through and the plan holds no decision.
template <executor Executor, entry_decision Policy, class... Given>
void decide(Executor& exec, Policy const& policy, signals<Given...> const& in, state<Executor> const& state,
            plan<Executor>& into) {
  if constexpr (detail::erased<detail::score_of<Policy>>) {
    detail::decide_given(exec, policy, policy.score.by_name(in), state, into);
  } else {
    detail::decide_given(exec, policy, in, state, into);
  }
}

/// True if a decision now would drop entries of any lane: its count has reached what the policy's trigger waits for. A
/// decode loop with slack asks this after each `append`, and decides only then.
///
///     if (kv::due(policy, cache)) kv::decide(...), kv::apply(...);
///
/// With the pick `top` one decision brings every lane down to its budget. With `lowest_one`, as in the ready policies
/// `*_decode`, a decision drops one entry of each lane, so after several tokens of a forward it is asked in a loop,
/// `while (kv::due(policy, cache))`.
///
/// A pick by threshold, lanes that share a budget, and a budget that allots shares are always due, because only
/// `decide` can tell; so is a lane with more forced entries than its budget. For these a loop does not end: decide
/// once. Counts must be in memory that the host can read.
/// - cost: reads each count once.
template <entry_decision Policy>
[[nodiscard]] bool due(Policy const& policy, cache const& in) {
  detail::check_policy("due", policy, in.shape);
  detail::check_lanes("due", in.lanes, in.shape);
  auto const of = detail::resolve(policy);
  if (of.by_threshold || of.scope != budget_scope::lane || of.allots) return true;
  auto const limit = detail::in_entries(policy.budget, in.shape, entry_bytes(in));
  auto const when = detail::trigger_of(policy);
  auto const budget_of = [&](lane one, int count) {
    int const allowed = std::max(limit(one, count), 0);
    return of.drops_part ? detail::budget_for_trigger<lowest>(allowed) : allowed;
  };
  bool any = false;
  detail::for_each_lane(in.lanes, [&](int, lane one) {
    int const count = in.lanes.committed(one);
    any = any || (detail::is_due(when, in.lanes.newest(one)) && when(count, budget_of(one, count)));
  });
  return any;
}

}  // namespace KVPOLICY_NAMESPACE
