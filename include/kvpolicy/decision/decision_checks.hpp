// SPDX-License-Identifier: Apache-2.0
// The checks that the calls of a decision make before they write anything.
#pragma once

#include <kvpolicy/core/contract/check.hpp>
#include <kvpolicy/core/plan.hpp>
#include <kvpolicy/decision/concepts.hpp>
#include <kvpolicy/decision/rule.hpp>
#include <kvpolicy/ops/all_reduce.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

/// Calls the `check` of a part of a policy, if it has one.
template <class Part>
void check_part(char const* call, Part const& part) {
  if constexpr (requires { part.check(call); }) part.check(call);
}
template <class Part>
void check_part(char const* call, Part const& part, shape const& model) {
  if constexpr (requires { part.check(call, model); }) {
    part.check(call, model);
  } else {
    check_part(call, part);
  }
}

/// Calls the `check` of a scorer, and of the scorer inside a stage before that of the stage.
template <class Score>
void check_scorer_values(char const* call, Score const& score, shape const& model) {
  if constexpr (holds_wrapped<Score>) check_scorer_values(call, score.score_of, model);
  check_part(call, score, model);
}

/// True for a budget whose allotter goes by the scores of all lanes.
template <class Budget>
[[nodiscard]] bool shared_by_scores(Budget const& limit) {
  if constexpr (requires { limit.reads_scores(); }) {
    return limit.reads_scores();
  } else {
    return false;
  }
}

/// Refuses an allotter where scores come after the shares, where it has nothing to go by, or where entries are not
/// picked by shares.
template <class Policy>
void check_shares(char const* call, Policy const& policy) {
  if constexpr (requires { policy.budget.lane_numbers(); }) {
    if (!shared_by_scores(policy.budget)) return;
    auto const text = [&] { return to_string(policy.budget); };
    scorer_facts const facts = facts_of(policy.score);
    expects(!facts.ranks_candidates, call, "budget", text,
            "its shares go by scores, and this scorer ranks the entries that compete, once shares are known");
    expects(facts.lane_numbers >= policy.budget.lane_numbers(), call, "budget", text,
            [&] { return "it goes by numbers that cake computes, and " + std::string(facts.name) + " does not"; });
    bool by_budget = false;
    with_pick(pick_of(policy), [&]<class Pick>(Pick const&) { by_budget = std::same_as<Pick, top>; });
    expects(by_budget, call, "budget", text, "its shares are of a policy that picks the best entries");
  }
}

/// Checks every part of an eviction, an admission or a selection, and then the policy as a whole.
template <class Policy>
void check_policy(char const* call, Policy const& policy, shape const& model) {
  check_scorer_values(call, policy.score, model);
  if constexpr (requires { policy.protect; }) check_part(call, policy.protect);
  check_part(call, policy.budget);
  if constexpr (requires { policy.trigger; }) check_part(call, policy.trigger);
  if constexpr (requires { policy.budget.differs_by_layer(); }) {
    bool const layers_decide_alone = policy.score.decides != granularity::sequence;
    expects(layers_decide_alone || !policy.budget.differs_by_layer(), call, "budget", "different for each layer",
            "layers that decide together have one budget");
  }
  check_shares(call, policy);
  check_part(call, pick_of(policy));
  check_part(call, policy);
}

/// Refuses a policy that would decide differently on each rank: a budget that heads share is divided by comparing the
/// scores of all heads, and a rank has only some of them. The same holds for a scorer whose heads decide together
/// without a reduction over the ranks.
template <executor Executor, class Policy>
void refuse_pool_of_ranks(char const* call, Executor const& exec, resolved<Policy> const& of) {
  expects(of.scope == budget_scope::lane || ranks_of(exec) == 1, call, "budget.scope", to_string(of.scope),
          [&] { return "the heads that share it are on " + std::to_string(ranks_of(exec)) + " ranks: gather first"; });
  expects(
      !shared_by_scores(of.policy.budget) || ranks_of(exec) == 1, call, "budget",
      [&] { return to_string(of.policy.budget); },
      [&] { return "its shares go by heads that are on " + std::to_string(ranks_of(exec)) + " ranks"; });
  expects(of.scorer.safe_across_ranks || ranks_of(exec) == 1, call, "score.decides", to_string(of.decides), [&] {
    return "heads of " + std::to_string(ranks_of(exec)) + " ranks decide, and the scorer does not reduce";
  });
}

/// The rows of floats that a policy's scorer needs, and behind them those of its budget's allotter.
template <class Policy>
[[nodiscard]] int spare_rows_of(Policy const& policy, lanes const& batch, shape const& model) {
  return spare_rows(policy.score, batch, model) + spare_rows_of_budget(policy.budget, batch);
}

/// Checks that the plan was made for this policy, and that lanes can share the budget in the budget's scope.
template <executor Executor, class Policy>
void check_plan(char const* call, Executor const& exec, resolved<Policy> const& of, lanes const& batch,
                shape const& model, plan<Executor> const& into) {
  Policy const& policy = of.policy;
  expects(into.decides() == of.decides, call, "plan.decides", to_string(into.decides()),
          "the plan was made for another granularity");
  refuse_pool_of_ranks(call, exec, of);
  int const segments = kvpolicy::segments(batch, of.decides);
  expects(
      segments <= into.segments(), call, "signals.lanes", [&] { return std::to_string(segments) + " segments"; },
      [&] {
        return "the plan decides about " + std::to_string(into.segments()) +
               " at once: evict decides about more in turns";
      });
  expects(spare_rows_of(policy, batch, model) <= into.spare_rows(), call, "plan",
          "without the spare rows that this policy needs", "make_plan makes it for the policy that decides");
  expects(!of.allots || into.allots(), call, "plan", "without room for shares",
          "make_plan makes it for the policy that decides");
  expects(!of.needs_kept() || into.counts_kept(), call, "plan", "without room for what lanes keep",
          "make_plan makes it for the policy that decides");
  if constexpr (!ranks_again<std::remove_cvref_t<decltype(policy.score)>>) {
    expects(!of.scorer.ranks_again, call, "policy.score", of.scorer.name,
            "it ranks its blocks again, and no stage may be around it");
  }
  if constexpr (!puts_first<std::remove_cvref_t<decltype(policy.score)>>) {
    refuse_rest_in_plan(call, "policy.score", policy.score);
  }
  expects(!of.counts_before_picking() || of.scope == budget_scope::lane, call, "budget.scope", to_string(of.scope),
          "where blocks or a part of the entries go, every lane has a budget of its own");
  expects(scope_at_once(policy.budget) != budget_scope::sequence || batch.layers() == model.layers, call,
          "signals.lanes.layers", batch.layers(),
          [&] { return "all " + std::to_string(model.layers) + " layers share this budget"; });
  expects(!of.drops_one || of.scope == budget_scope::lane, call, "budget.scope", to_string(of.scope),
          "every lane drops one of its own");
}

}  // namespace KVPOLICY_NAMESPACE::detail
