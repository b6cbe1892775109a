// SPDX-License-Identifier: Apache-2.0
// The concepts that the calls of a decision accept. Read this file first in this folder.
#pragma once

#include <concepts>
#include <kvpolicy/decision/decision_hooks.hpp>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {
namespace detail {

template <class Policy>
using score_of = std::remove_cvref_t<decltype(std::declval<Policy const&>().score)>;

}  // namespace detail

/// A scorer whose scores are of entries. Every scorer is one, unless it declares `scores_of = item::page`.
template <class S>
concept entry_scorer = scorer<S> && !detail::scores_pages<S>;

/// A scorer whose scores are of pages. It declares `scores_of = item::page`, and its member `page` is the number of
/// entries of a page.
template <class S>
concept page_scorer = scorer<S> && detail::scores_pages<S> && requires(S const& score) {
  { score.page } -> std::convertible_to<int>;
};

/// A policy that decides which entries of a lane are kept: an eviction, an admission, or a type with the same members.
/// Its parts are a scorer of entries, a protection, a budget, a trigger and optionally a pick. `make_state`,
/// `make_plan`, `observe` and `decide` accept it.
template <class P>
concept entry_decision = detail::is_sound_entry_decision<P>;

/// A policy that decides which pages of a lane are read: a selection, or a type with the same members. `make_state`,
/// `make_plan`, `observe` and `select_pages` accept it.
template <class P>
concept page_decision = detail::is_sound_page_decision<P> && requires(P const& policy) {
  { policy.dense_layers } -> std::convertible_to<int>;
};

}  // namespace KVPOLICY_NAMESPACE
