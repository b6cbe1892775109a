// What the calls of a decision take. The first file to read in this room.
#pragma once

#include <concepts>
#include <kvpolicy/decision/hooks.hpp>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {
namespace detail {

template <class Policy>
using score_of = std::remove_cvref_t<decltype(std::declval<Policy const&>().score)>;

}  // namespace detail

/// A scorer of entries, which is what a scorer is unless it says `scores_of = unit::page`.
template <class S>
concept entry_scorer = scorer<S> && !detail::scores_pages<S>;

/// A scorer of pages: `scores_of` says so, and `page` how many entries one holds.
template <class S>
concept page_scorer = scorer<S> && detail::scores_pages<S> && requires(S const& score) {
  { score.page } -> std::convertible_to<int>;
};

/// A policy that decides which entries of a lane stay: an eviction, an admission, or a type with the same members, whose
/// parts are a scorer of entries, a protection, a budget, a trigger and, where it has one, a pick. `make_state`,
/// `make_plan`, `observe` and `decide` take it.
template <class P>
concept entry_decision = detail::is_sound_entry_decision<P>;

/// A policy that decides which pages of a lane are read: a selection, or a type with the same members. `make_state`,
/// `make_plan`, `observe` and `select` take it.
template <class P>
concept page_decision = detail::is_sound_page_decision<P> && requires(P const& policy) {
  { policy.dense_layers } -> std::convertible_to<int>;
};

}  // namespace KVPOLICY_NAMESPACE
