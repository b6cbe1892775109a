// SPDX-License-Identifier: Apache-2.0
// Verb: keeps the entries of every segment whose score a rule picks.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/rule.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `select_if(exec, scores, rule, keep)`: keeps, in each segment, the entries that are forced or whose score is picked.
///
/// - in: `scores` [segments, entries], float32. `rule` has the KVPOLICY_HD members `picks(float)`, which must be false
///   for NaN, and `forces(entry)`. Instead of `picks(float)` it may have `picks(float, lane)`, which also gets the
///   segment's first lane.
/// - out: `keep`, strictly ascending ordinals. NaN scores are counted in the report.
/// - cost: O(entries) per segment, in one pass. Scratch of a device: a bit for each entry, and that of a selection.
/// - throws: `invalid_argument` if the capacity of `keep` is less than one ordinal per entry. On the host, an exception
///   of a member of `rule` is passed on; then `keep` is as `top_k` leaves it.
struct select_if_t : verb<select_if_t> {
  static constexpr auto name = "select_if";

  template <class Scores, class Rule, class Keep>
  using hooks_of = detail::picking_rule_hooks<Rule>;

  template <class Rule>
  static void check(score_view const& scores, Rule const&, keep_set const& keep) {
    expects(keep.capacity >= static_cast<std::int64_t>(scores.segments()) * scores.lanes.capacity, "select_if",
            "keep.capacity", keep.capacity, "every entry of every segment must fit");
    expects(keep.decides == scores.decides, "select_if", "keep.decides", static_cast<int>(keep.decides),
            "scores and keep set are made by one granularity");
  }
};
inline constexpr select_if_t select_if{};

}  // namespace KVPOLICY_NAMESPACE::ops
