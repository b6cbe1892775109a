// Eviction as a value: which entries a lane keeps.
#pragma once

#include <kvpolicy/budget/budget.hpp>
#include <kvpolicy/budget/pick.hpp>
#include <kvpolicy/eviction/hooks.hpp>
#include <kvpolicy/protect/protect.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/trigger/trigger.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {

/// *When* a trigger fires, *protect* some entries, *score* the others, and *pick* the best up to a *budget* (or, with
/// `at_least`, what scores enough, whatever the budget).
///
///     kv::eviction{.score = kv::snapkv{.window = 32}, .protect = kv::sinks{4}, .budget = kv::per_lane{1024}}
///
/// A plain value: copyable, comparable, printable. It owns no memory, holds no state, picks no backend.
template <class Score, class Protect = nothing, class Budget = per_lane, class Pick = top, class Trigger = over_budget>
struct eviction {
  Score score{};
  Protect protect{};  ///< united with what the scorer itself forces
  Budget budget{};    ///< forced entries count inside it; if they exceed it exactly they are kept
  Pick pick{};
  Trigger trigger{};
  friend bool operator==(eviction const&, eviction const&) = default;

  static_assert(detail::eviction_parts<Score, Protect, Budget, Pick, Trigger>::check());
};

/// "snapkv(window=32, pool=max:7, rows=sum, group=mean) | sinks(4) | budget(1024)": parts that do nothing are left out.
template <class Score, class Protect, class... Others>
[[nodiscard]] std::string print(eviction<Score, Protect, Others...> const& policy) {
  std::string text = to_string(policy.score);
  std::string const kept = to_string(policy.protect);
  if (!std::same_as<Protect, nothing> && !kept.empty()) text += " | " + kept;
  text += " | " + to_string(policy.budget);
  if constexpr (!std::same_as<decltype(policy.pick), top>) text += " | " + to_string(policy.pick);
  constexpr bool usual = std::same_as<std::remove_cvref_t<decltype(policy.trigger)>, over_budget>;
  if (!usual || !(policy.trigger == decltype(policy.trigger){})) text += " | " + to_string(policy.trigger);
  return text;
}

/// Something that `decide` takes: an eviction, or a type that offers the same members, whose parts are a scorer of
/// tokens, a protection, a budget, a trigger and, where it has one, a pick.
template <class P>
concept eviction_policy = detail::is_sound_eviction<P>;

namespace detail {

/// What top_k asks of a policy.
template <class Forces, class Protect, class Budget, class Trigger, class Pick = top>
struct eviction_rule {
  Forces forced_by_scorer;
  Protect protect;
  Budget limit;
  Trigger trigger;
  Pick pick{};

  static constexpr bool constrains_hooks = true;

  [[nodiscard]] KVPOLICY_HD bool picks(float score) const
    requires threshold<Pick>
  {
    return pick(score);
  }
  [[nodiscard]] KVPOLICY_HD int budget(lane who, int count) const { return limit(who, count); }
  [[nodiscard]] KVPOLICY_HD bool triggers(int count, int allowed) const { return trigger(count, allowed); }
  [[nodiscard]] KVPOLICY_HD budget_scope scope() const { return scope_of(limit); }
  [[nodiscard]] KVPOLICY_HD int floor(int share) const { return floor_of(limit, share); }
  [[nodiscard]] KVPOLICY_HD bool forces(entry at) const { return forced_by_scorer(at) || protect(at); }
  [[nodiscard]] KVPOLICY_HD ordinal_range candidates(lane_entries const& of) const
    requires(has_candidates<Forces> && has_candidates<Protect>)
  {
    return either<Forces, Protect>{forced_by_scorer, protect}.candidates(of);
  }
};

template <class Score>
constexpr auto forces_of(Score const& score) {
  if constexpr (requires { score.forces(); }) {
    return score.forces();
  } else {
    return nothing{};
  }
}

/// The same where a scorer may say what it forces by what it is told.
template <class Score, class Bag>
constexpr auto forces_of(Score const& score, Bag const& in) {
  if constexpr (requires { score.forces(in); }) {
    static_assert(ranks_candidates<Score>, "kvpolicy: a scorer whose signals say what it forces ranks candidates");
    return score.forces(in);
  } else {
    return forces_of(score);
  }
}

/// A policy's trigger, and the scorer's own where it has one.
template <class Trigger, class Own>
struct both_trigger {
  Trigger of_policy;
  Own of_score;
  [[nodiscard]] KVPOLICY_HD bool operator()(int count, int allowed) const {
    return of_policy(count, allowed) && of_score(count, allowed);
  }
};

template <class Policy>
constexpr auto trigger_of(Policy const& policy) {
  if constexpr (requires { policy.score.triggers(); }) {
    return both_trigger{policy.trigger, policy.score.triggers()};
  } else {
    return policy.trigger;
  }
}

/// Calls visit with a protection as decisions ask it, entry by entry. One that is chosen at run time picks a type that
/// costs an entry no more than it must.
template <class Protect, class Visit>
void with_protection(Protect const& protect, Visit const& visit) {
  if constexpr (requires { protect.pick(visit); }) {
    protect.pick(visit);
  } else {
    visit(protect);
  }
}

/// `entry_bytes`: of one entry of one lane; what a budget in bytes is counted in.
template <class Policy, class Protect, class Bag>
constexpr auto rule_of(Policy const& policy, Protect const& protect, Bag const& in, shape const& model,
                       std::int64_t entry_bytes) {
  return eviction_rule{forces_of(policy.score, in), protect, in_entries(policy.budget, model, entry_bytes),
                       trigger_of(policy), pick_of(policy)};
}

/// 0 for a candidate, -inf for an entry that a rule forces.
template <class Rule>
struct zero_if_candidate {
  static constexpr float no_candidate = -std::numeric_limits<float>::infinity();
  Rule rule;
  KVPOLICY_HD float operator()(float, entry at) const {
    at.budget = rule.budget(at.who, at.count);
    return rule.forces(at) ? no_candidate : 0.0f;
  }
};
template <class Rule>
zero_if_candidate(Rule) -> zero_if_candidate<Rule>;

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
