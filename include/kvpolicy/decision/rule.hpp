// SPDX-License-Identifier: Apache-2.0
// The parts of a policy as one value, the rule, which verbs call for every entry.
#pragma once

#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/decision/decision_hooks.hpp>
#include <kvpolicy/decision/when_due.hpp>
#include <kvpolicy/parts/allot.hpp>
#include <kvpolicy/parts/budget.hpp>
#include <kvpolicy/parts/pick.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/parts/seen.hpp>
#include <kvpolicy/parts/trigger.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The rule of a decision: the parts of a policy as one value, which `top_k`, `select_if` and `argmin` call.
template <class Forces, class Protect, class Budget, class Trigger, class Pick = top,
          class Observed = observed_signals<>>
struct decision_rule {
  Forces forced_by_scorer;
  Protect protect;
  Budget limit;
  Trigger trigger;
  Pick pick{};
  Observed observed_by{};
  bool may_empty = false;  ///< a pick by threshold that keeps nothing of a lane is counted

  static constexpr bool constrains_hooks = true;

  /// True if nothing was observed in a lane.
  [[nodiscard]] KVPOLICY_HD bool unobserved(lane this_lane) const
    requires(Observed::can_tell)
  {
    return !observed_by.observed(this_lane);
  }
  [[nodiscard]] KVPOLICY_HD bool picks(float score, lane const& of) const
    requires threshold<Pick>
  {
    return takes(pick, score, of);
  }
  /// The budget of a lane. A negative budget counts as 0, so that only forced entries are kept and the difference of a
  /// count and a budget cannot overflow.
  [[nodiscard]] KVPOLICY_HD int budget(lane this_lane, int count) const {
    int const allowed = limit(this_lane, count);
    return allowed > 0 ? allowed : 0;
  }
  /// The budget that a lane would have if shares did not differ.
  [[nodiscard]] KVPOLICY_HD int average(lane this_lane, int count) const {
    if constexpr (requires { limit.average_of(this_lane, count); }) {
      return limit.average_of(this_lane, count);
    } else {
      return budget(this_lane, count);
    }
  }
  [[nodiscard]] KVPOLICY_HD bool triggers(int count, int allowed) const { return trigger(count, allowed); }
  [[nodiscard]] KVPOLICY_HD bool triggers(int count, int allowed, int lanes) const {
    return fires_in_pool(trigger, count, allowed, lanes);
  }
  [[nodiscard]] KVPOLICY_HD budget_scope scope() const { return scope_of(limit); }
  [[nodiscard]] KVPOLICY_HD int floor(int share) const { return floor_of(limit, share); }
  [[nodiscard]] KVPOLICY_HD bool forces(entry at) const { return forced_by_scorer(at) || protect(at); }
  [[nodiscard]] KVPOLICY_HD ordinal_range candidates(lane_entries const& of) const
    requires(has_candidates<Forces> && has_candidates<Protect>)
  {
    return either<Forces, Protect>{forced_by_scorer, protect}.candidates(of);
  }
  /// Calls visit(ordinal) for each forced entry of a lane whose entries are in the order of their positions, on the
  /// host.
  template <class Visit>
  void visit_forced(lane_entries const& of, Visit const& visit) const
    requires(lists_protected<Forces> && lists_protected<Protect>)
  {
    visit_protected(forced_by_scorer, of, visit);
    visit_protected(protect, of, visit);
  }
};

/// What a scorer forces, as a protection.
template <class Score>
constexpr auto forces_of(Score const& score) {
  constexpr auto question = [](auto const& one) -> decltype(one.forces()) { return one.forces(); };
  return ask(score, question, nothing{});
}

/// A scorer whose `forces` takes no signals, and one whose `forces` takes them.
template <class Score>
concept says_what_it_forces = requires(Score const& score) { score.forces(); };
template <class Score, class SignalSet>
concept forces_by_signals = requires(Score const& score, SignalSet const& in) { score.forces(in); };

/// The question of `forces_of`: see `ask`.
template <class SignalSet>
struct asks_what_it_forces {
  SignalSet const& in;
  template <class Score>
    requires(says_what_it_forces<Score> || forces_by_signals<Score, SignalSet>)
  constexpr auto operator()(Score const& score) const {
    if constexpr (forces_by_signals<Score, SignalSet>) {
      static_assert(may_rank_candidates<Score>, "kvpolicy: a scorer whose signals say what it forces ranks candidates");
      return score.forces(in);
    } else {
      return score.forces();
    }
  }
};

/// The same for a scorer whose forced entries may depend on the signals: it has `forces(in)`.
template <class Score, class SignalSet>
constexpr auto forces_of(Score const& score, SignalSet const& in) {
  return ask(score, asks_what_it_forces<SignalSet>{in}, nothing{});
}

/// Calls `visit` with the protection that a decision calls for every entry. A protection that is chosen at run time
/// passes its concrete type, so that the calls can be inlined.
template <class Protect, class Visit>
void with_protection(Protect const& protect, Visit const& visit) {
  if constexpr (requires { protect.pick(visit); }) {
    protect.pick(visit);
  } else {
    visit(protect);
  }
}

/// Calls `visit` with a policy's pick. A pick that is chosen at run time passes its concrete type.
template <class Pick, class Visit>
void with_pick(Pick const& pick, Visit const& visit) {
  if constexpr (erased<Pick>) {
    pick.visit(visit);
  } else {
    visit(pick);
  }
}

/// What a policy says of itself, for checks and decisions: a call computes it once, before it reads signals.
template <class Policy>
struct resolved {
  Policy const& policy;
  scorer_facts scorer;
  granularity decides;  ///< which lanes decide together
  budget_scope scope;   ///< which lanes share the budget
  bool again;           ///< it decides after every step, chunk or turn, and not once after a prompt
  bool allots;          ///< its budget gives every lane a share of its own
  bool drops_one;       ///< its pick drops the entry with the lowest score
  bool by_threshold;    ///< its pick keeps every entry whose score reaches a threshold
  bool drops_part;      ///< its pick drops a part of what is there

  /// True if it counts what stays of each lane before it picks: see `block_rule`.
  [[nodiscard]] bool counts_before_picking() const { return drops_part || scorer.block > 0; }
  /// True if the plan needs one more number for each lane: see `plan::kept`.
  [[nodiscard]] bool needs_kept() const { return counts_before_picking() || scorer.reads_budget; }
  /// Its budget in entries, where a row of an entry has `bytes`.
  [[nodiscard]] auto limit(shape const& model, std::int64_t bytes) const {
    return counted_budget(in_entries(policy.budget, model, bytes), again);
  }
};

template <class Policy>
resolved<Policy> resolve(Policy const& policy) {
  resolved<Policy> made{
      policy, facts_of(policy.score), policy.score.decides, scope_of(policy.budget), false, false, false, false, false};
  phase when = made.scorer.when;
  if constexpr (requires { when = policy.when; }) when = policy.when;
  made.again = when != phase::prefill && when != phase::layer;
  made.allots = is_allotted(counted_budget(policy.budget, made.again));
  with_pick(pick_of(policy), [&]<class Pick>(Pick const&) {
    made.drops_one = std::same_as<Pick, lowest_one>;
    made.by_threshold = threshold<Pick>;
    made.drops_part = detail::drops_part<Pick>;
  });
  return made;
}

/// Calls visit(forces, protection) with what the scorer forces and what the policy protects. What an erased scorer
/// forces and what is protected are one protection.
template <class Policy, class SignalSet, class Visit>
void with_forced(Policy const& policy, SignalSet const& in, Visit const& visit, forced_by by = forced_by::policy) {
  if constexpr (erased<std::remove_cvref_t<decltype(policy.score)>>) {
    auto forced = policy.score.forces(in);
    if (by == forced_by::policy) forced.join(policy.protect);
    forced.pick([&](auto const& all) { visit(all, nothing{}); });
  } else if (by == forced_by::scorer) {
    visit(forces_of(policy.score, in), nothing{});
  } else {
    with_protection(policy.protect, [&](auto const& protect) { visit(forces_of(policy.score, in), protect); });
  }
}

/// The form in which a rule holds the signals that know what was observed: by reference if their type offers
/// `referred()`, by value otherwise.
template <class Observed>
constexpr auto kept_by_rule(Observed const& of) {
  if constexpr (requires { of.referred(); }) {
    return of.referred();
  } else {
    return of;
  }
}

/// True for a policy whose decisions are about all entries of a lane. An admission decides about those that leave.
template <class Policy>
inline constexpr bool evicts = !requires(Policy const& policy) {
  policy.window;
  policy.cap;
};

/// The budget that the rule of a decision has.
template <class Trigger, class Budget>
constexpr auto budget_of_rule([[maybe_unused]] Trigger const& when, Budget const& limit,
                              [[maybe_unused]] lanes const& batch) {
  if constexpr (timed<Trigger>) {
    return budget_when_due<Budget, Trigger>{limit, when, batch};
  } else {
    return limit;
  }
}

/// Calls visit(rule) with the rule of a policy. `limit` is its budget in entries.
template <class Policy, class SignalSet, class Budget, class Visit>
void with_rule(Policy const& policy, SignalSet const& in, Budget const& limit, forced_by by, Visit const& visit) {
  auto const observed = observed_by(policy.score, in);
  auto const when = trigger_of(policy);
  auto const allowed = budget_of_rule(when, limit, in.lanes);
  with_pick(pick_of(policy), [&](auto const& pick) {
    with_forced(
        policy, in,
        [&](auto const& forced, auto const& protect) {
          visit(decision_rule{forced, protect, allowed, when, pick, kept_by_rule(observed), evicts<Policy>});
        },
        by);
  });
}
template <class Policy, class SignalSet, class Budget, class Visit>
void with_rule(Policy const& policy, SignalSet const& in, Budget const& limit, Visit const& visit) {
  with_rule(policy, in, limit, forced_by::policy, visit);
}

/// Maps an entry to 0 if it is a candidate, and to -inf if the rule forces it.
template <class Rule>
struct zero_if_candidate {
  static constexpr float no_candidate = -std::numeric_limits<float>::infinity();
  Rule rule;
  KVPOLICY_HD float operator()(float, entry at) const {
    at.budget = rule.budget(at.lane, at.count);
    return rule.forces(at) ? no_candidate : 0.0f;
  }
};
template <class Rule>
zero_if_candidate(Rule) -> zero_if_candidate<Rule>;

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
