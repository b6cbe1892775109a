// SPDX-License-Identifier: Apache-2.0
// `eviction`: a policy that decides which entries a lane keeps.
#pragma once

#include <kvpolicy/decision/concepts.hpp>
#include <kvpolicy/decision/rule.hpp>

namespace KVPOLICY_NAMESPACE {

/// A policy that drops entries from the cache. When its *trigger* fires, it keeps the entries that it *protects*,
/// *scores* the others, and *picks* those with the highest scores up to a *budget*. With the pick `at_least` it keeps
/// every entry whose score reaches a threshold, and asks neither the trigger nor the budget.
///
///     kv::eviction{.score = kv::snapkv{.window = 32}, .protect = kv::sinks{4}, .budget = kv::per_lane{1024}}
///
/// An eviction is a plain value that can be copied, compared and printed. It owns no memory, has no state and does not
/// depend on a backend.
template <class Score, class Protect = nothing, class Budget = per_lane, class Pick = top, class Trigger = over_budget>
struct eviction {
  Score score{};
  Protect protect{};  ///< entries that are kept whatever their score, besides those that the scorer itself forces
  Budget budget{};    ///< includes the forced entries; if they alone exceed it, exactly they are kept
  Pick pick{};
  Trigger trigger{};
  friend bool operator==(eviction const&, eviction const&) = default;

  static_assert(detail::entry_decision_parts<Score, Protect, Budget, Pick, Trigger>::check());
};

/// Prints "snapkv(window=32, pool=max:7, rows=sum, group=mean) | sinks(4) | budget(1024)". The protection `nothing`,
/// the pick `top` and the default trigger are left out.
template <class Score, class Protect, class... Others>
[[nodiscard]] std::string print(eviction<Score, Protect, Others...> const& policy) {
  std::string text = to_string(policy.score);
  std::string const kept = to_string(policy.protect);
  if (!std::same_as<Protect, nothing> && !kept.empty()) text += " | " + kept;
  std::string limit = to_string(policy.budget);
  if (detail::facts_of(policy.score).shares) {  // in a spec its budgets are shared unless they say otherwise
    bool const own = detail::scope_of(policy.budget) == budget_scope::lane && limit.starts_with("budget(");
    if (own && limit.find("scope=") == std::string::npos) limit.insert(limit.size() - 1, ", scope=lane");
  }
  text += " | " + limit;
  detail::with_pick(policy.pick, [&]<class Pick>(Pick const&) {
    if (!std::same_as<Pick, top>) text += " | " + to_string(policy.pick);
  });
  using trigger_type = std::remove_cvref_t<decltype(policy.trigger)>;
  constexpr bool usual = std::same_as<trigger_type, over_budget> || detail::erased<trigger_type>;
  if (!usual || !(policy.trigger == decltype(policy.trigger){})) text += " | " + to_string(policy.trigger);
  return text;
}

/// An eviction, or a type with the same members.
template <class P>
concept eviction_policy = entry_decision<P>;

}  // namespace KVPOLICY_NAMESPACE
