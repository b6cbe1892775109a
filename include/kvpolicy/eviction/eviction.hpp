// Eviction as a value: which entries a lane keeps.
#pragma once

#include <kvpolicy/decision/concepts.hpp>

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

  static_assert(detail::entry_decision_parts<Score, Protect, Budget, Pick, Trigger>::check());
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

/// Something that evicts: an eviction, or a type with the same members.
template <class P>
concept eviction_policy = entry_decision<P>;

}  // namespace KVPOLICY_NAMESPACE
