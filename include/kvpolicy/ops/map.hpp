// SPDX-License-Identifier: Apache-2.0
// Verb: applies a function to each score and its entry.
#pragma once

#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/rule.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {
/// False of the score of an entry that does not compete, which is -inf.
[[nodiscard]] KVPOLICY_HD constexpr bool competes(float score) { return score != same_bits<float>(0xFF800000u); }
}  // namespace detail

/// A function for `map`: 0 for the entries that compete, and -inf for those whose score in a table is -inf.
struct competing {
  by_lane<float> scores;
  KVPOLICY_HD float operator()(float, entry at) const {
    float const score = scores.row(at.lane)[at.ordinal];
    return detail::competes(score) ? 0.0f : score;
  }
};

}  // namespace KVPOLICY_NAMESPACE

namespace KVPOLICY_NAMESPACE::ops {

/// `map(exec, scores, f)`: scores[e] = f(scores[e], entry e) for every committed entry of every segment.
///
/// - in, out: `scores` [segments, entries]. `f` is a struct with a KVPOLICY_HD `float operator()(float, entry) const`.
///   `f` may also have `in_lane(lane_entries)`, which returns a function of the same form and the same values for
///   one lane: what is the same for all entries is then computed once. The budget of these entries is not set.
/// - cost: O(entries) per segment; no scratch.
/// - throws: on the host, an exception of `f` is passed on. Then each score has its old or its new value: in the
///   segment whose call threw, the entries before the throwing one have new values; in other segments all, none or some
///   have.
struct map_t : verb<map_t> {
  static constexpr auto name = "map";

  template <class Scores, class Function>
  using hooks_of = detail::map_hooks<Function>;

  template <class Function>
  static constexpr void check(score_view const&, Function const&) {}
};
inline constexpr map_t map{};

}  // namespace KVPOLICY_NAMESPACE::ops
