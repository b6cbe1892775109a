// SPDX-License-Identifier: Apache-2.0
// Policies for the groups of a model: one for all, or one for each.
#pragma once

#include <concepts>
#include <cstddef>
#include <kvpolicy/groups/layer_groups.hpp>
#include <string>
#include <tuple>
#include <utility>

namespace KVPOLICY_NAMESPACE {

/// The policy of a group that the library does not touch: its layers are recurrent, or the engine keeps their window
/// itself. Such a group has no state and no plan, and no call reads its cache.
struct no_policy {
  static constexpr auto name = "no_policy";
  friend bool operator==(no_policy const&, no_policy const&) = default;
};

/// A policy for each group of a model, in the order of the groups.
///
///     kv::by_group const policies(kv::policies::snapkv({.budget = 1024}), kv::no_policy{});
///
/// A policy alone, in place of this, is that of every group.
template <class... Policies>
class by_group {
 public:
  explicit by_group(Policies... policies) : policies_(std::move(policies)...) {}
  static constexpr std::size_t count = sizeof...(Policies);

  /// Calls visit(policy) with the policy of a group.
  template <class Visit>
  void visit(std::size_t group, Visit const& visit_one) const {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((I == group ? visit_one(std::get<I>(policies_)) : void()), ...);
    }(std::make_index_sequence<count>{});
  }
  friend bool operator==(by_group const&, by_group const&) = default;

 private:
  std::tuple<Policies...> policies_;
};

namespace detail {

template <class Policy>
inline constexpr bool touches = !std::same_as<std::remove_cvref_t<Policy>, no_policy>;

template <class Policy>
inline constexpr std::size_t policies_in = 0;  // one for all
template <class... Policies>
inline constexpr std::size_t policies_in<by_group<Policies...>> = sizeof...(Policies);

/// Refuses another number of policies than of groups.
template <class Policy>
void check_policies(char const* call, layer_groups const& all, Policy const&) {
  check_groups(call, all);
  constexpr std::size_t given = policies_in<Policy>;
  expects(given == 0 || given == all.groups.size(), call, "policies", given,
          [&] { return "the model has " + std::to_string(all.groups.size()) + " groups, and each has one"; });
}

/// Calls visit(index, policy) for each group that has a policy.
template <class Policy, class Visit>
void for_each_policy(layer_groups const& all, Policy const& policies, Visit const& visit) {
  for (std::size_t g = 0; g < all.groups.size(); ++g) {
    auto const one = [&](auto const& policy) {
      if constexpr (touches<decltype(policy)>) in_group(all.groups[g], [&] { visit(g, policy); });
    };
    if constexpr (policies_in<Policy> == 0) {
      one(policies);
    } else {
      policies.visit(g, one);
    }
  }
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
