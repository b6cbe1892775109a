// What a scorer is. The first file to read in this room.
#pragma once

#include <concepts>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>

namespace KVPOLICY_NAMESPACE {

/// A scorer says how much each entry is worth. A struct of parameters, regular, with
///
/// - `using needs = kvpolicy::needs<...>`: the signals that it reads;
/// - `static constexpr granularity decides`: who decides together;
/// - `void score(auto& exec, auto const& in, score_view out) const`: written in verbs, so that every backend serves it.
///
/// Optional: `name` and `fields()` (printing), `forces()` (entries that it keeps whatever their score, as a
/// protection), `recorders()` (what it must have seen, as a tuple of recorders).
///
/// Laws: the same input gives the same scores; only `out` is written; higher is kept; NaN is allowed and never wins.
template <class S>
concept scorer = std::regular<S> && requires {
  typename S::needs;
  { S::decides } -> std::convertible_to<granularity>;
};

}  // namespace KVPOLICY_NAMESPACE
