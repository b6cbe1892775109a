// What the calls of a decision take. The first file to read in this room.
#pragma once

#include <concepts>
#include <kvpolicy/budget/budget.hpp>
#include <kvpolicy/budget/pick.hpp>
#include <kvpolicy/protect/protect.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/trigger/trigger.hpp>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {
namespace detail {

template <class Policy>
using score_of = std::remove_cvref_t<decltype(std::declval<Policy const&>().score)>;

}  // namespace detail

/// A scorer of entries, which is what a scorer is unless it says `scores_of = unit::page`.
template <class S>
concept entry_scorer = scorer<S> && detail::unit_scored<S> == unit::token;

/// A scorer of pages: `scores_of` says so, and `page` how many entries one holds.
template <class S>
concept page_scorer = scorer<S> && detail::unit_scored<S> == unit::page && requires(S const& score) {
  { score.page } -> std::convertible_to<int>;
};

/// A policy that decides which entries of a lane stay: an eviction, an admission, or a type with the same members.
/// `make_state`, `make_plan`, `observe` and `decide` take it.
template <class P>
concept entry_decision = entry_scorer<detail::score_of<P>> && requires(P const& policy) {
  requires protection<std::remove_cvref_t<decltype(policy.protect)>>;
  requires budget<std::remove_cvref_t<decltype(policy.budget)>>;
  requires trigger<std::remove_cvref_t<decltype(policy.trigger)>>;
};

/// A policy that decides which pages of a lane are read: a selection, or a type with the same members. `make_state`,
/// `make_plan`, `observe` and `select` take it.
template <class P>
concept page_decision = page_scorer<detail::score_of<P>> && requires(P const& policy) {
  requires budget<std::remove_cvref_t<decltype(policy.budget)>>;
  { policy.dense_layers } -> std::convertible_to<int>;
};

}  // namespace KVPOLICY_NAMESPACE
