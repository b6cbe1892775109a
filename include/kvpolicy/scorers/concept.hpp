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
/// Optional:
///
/// - `name` and `fields()`: printing;
/// - `forces()`: entries that it keeps whatever their score, as a protection; `forces(in)` where signals say which, of
/// a
///   scorer that ranks candidates;
/// - `triggers()`: when it has something to decide, as a trigger, beside the policy's own;
/// - `recorders()`: what it must have seen, as a tuple of recorders;
/// - `static constexpr bool ranks_candidates = true`: scores depend on which entries compete, so `out` comes with -inf
///   for every entry that the scorer or the policy forces and 0 for the others (`key_domain::candidates`);
/// - `check(call)`, or `check(call, shape)` where the model matters: refuses parameters; `refuse(exec, in)`: refuses
///   signals that only the data shows to be wrong, before anything is written;
/// - `reduces_ranks()`: true if what it writes is the same on all tensor-parallel ranks; needed where heads of several
///   ranks decide together;
/// - `using verbs = kvpolicy::verbs<...>`: the verbs that it runs and that need scratch memory, such as
///   `attention_mass` (see ops/scratch.hpp); `make_plan` reserves for them;
/// - `static constexpr bool rows_see_every_entry = true`: positions of its query rows do not matter, so a decision has
///   seen something wherever there is a row (`report::unobserved`);
/// - `spare_rows(lanes, shape)`: rows of floats, as long as an entry row, that it needs in a plan.
///
/// Laws: the same input gives the same scores; only `out` is written; higher is kept; NaN is allowed and never wins.
template <class S>
concept scorer = std::regular<S> && requires {
  typename S::needs;
  { S::decides } -> std::convertible_to<granularity>;
};

namespace detail {

/// What a scorer scores: entries, unless it says `static constexpr unit scores_of = unit::page`.
template <class Score>
inline constexpr unit unit_scored = [] {
  if constexpr (requires { Score::scores_of; }) {
    return Score::scores_of;
  } else {
    return unit::token;
  }
}();

/// True of a scorer whose scores depend on which entries compete.
template <class Score>
inline constexpr bool ranks_candidates = [] {
  if constexpr (requires { Score::ranks_candidates; }) {
    return Score::ranks_candidates;
  } else {
    return false;
  }
}();

}  // namespace detail

}  // namespace KVPOLICY_NAMESPACE
