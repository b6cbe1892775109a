// SPDX-License-Identifier: Apache-2.0
// Verb: keeps the entries with the highest scores of every segment.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/rule.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// A rule that keeps the k highest scores and forces nothing: plain top-k.
struct plain_top_k {
  int k = 0;
  [[nodiscard]] KVPOLICY_HD int budget(lane, int) const { return k > 0 ? k : 0; }
  [[nodiscard]] KVPOLICY_HD bool triggers(int, int) const { return true; }
  [[nodiscard]] KVPOLICY_HD bool forces(entry) const { return false; }
  [[nodiscard]] KVPOLICY_HD ordinal_range candidates(lane_entries const& of) const { return {0, of.count}; }
};

namespace ops {

/// `top_k(exec, scores, rule, keep)`: keeps, in each segment, the forced entries and the highest scores of the others,
/// up to the budget.
///
/// - in: `scores` [segments, entries], float32; NaN ranks below every number, -inf included; -0 equals +0.
/// - in: `rule`, a struct of KVPOLICY_HD members `budget(lane, count)`, `triggers(count, budget)` and `forces(entry)`.
///   Optional members are `candidates(lane_entries)`, the range of ordinals outside of which all entries are forced and
///   inside of which none is, so that `forces` is not called per entry; `scope()`, which segments of a sequence share
///   one budget and trigger together; `triggers(count, budget, lanes)`, which replaces `triggers(count, budget)` for
///   such a group of segments and gets the sums over its lanes; `floor(budget)`, how many entries each segment
///   keeps, forced entries included, before the rest of a shared budget is distributed; `visit_forced(of, count, f)`,
///   which calls f for each forced ordinal; and `unobserved(lanes, lane)`, whether nothing was observed of a lane,
///   which the report counts.
/// - out: `keep`, strictly ascending ordinals. A segment that does not trigger keeps all its entries. Otherwise k =
///   min(max(0, budget - forced), unforced) of the unforced entries are kept. If there are more forced entries than the
///   budget allows, exactly the forced entries are kept, and the report counts the segment. Scores are not written; no
///   special score marks an entry as forced or as no candidate.
/// - shared budgets: the forced entries of all segments count against the sum of the budgets. If the floors together
///   exceed it, only entries within the floors compete.
/// - ties: the lower ordinal wins; with a shared budget, the lower (layer, head, ordinal).
/// - cost: O(entries) per segment, without sorting. On the host a sample of the scores brackets the k-th one, one pass
///   counts and collects what lies in the bracket, and one pass writes ordinals. A short segment, and one whose worker
///   has no memory for a row, take three histogram passes and one that writes. Scratch per worker of the host: 2048
///   counters, and one number for each entry of a segment that may have 512 entries or more. The rule of a segment with
///   `candidates` is asked twice. Other keys are stored temporarily in the memory of `keep.indices`.
/// - throws: `invalid_argument` if the capacity of `keep` is less than one ordinal per entry, if lanes of one segment
///   hold different tokens, if a count is out of its limits, or if segments that share a budget consist of more than
///   one lane. On the host, an exception of a member of `rule` is passed on; then `keep` lists nothing, its
///   `entry_count` counts are -1, its report is empty, and scores are unchanged.
struct top_k_t : verb<top_k_t> {
  static constexpr auto name = "top_k";

  template <class Scores, class Rule, class Keep>
  using hooks_of = detail::rule_hooks<Rule>;

  template <class Rule>
  static void check(score_view const& scores, Rule const&, keep_set const& keep) {
    expects(keep.capacity >= static_cast<std::int64_t>(scores.segments()) * scores.lanes.capacity, "top_k",
            "keep.capacity", keep.capacity, "every entry of every segment must fit");
    expects(keep.decides == scores.decides, "top_k", "keep.decides", static_cast<int>(keep.decides),
            "scores and keep set are made by one granularity");
  }
};
inline constexpr top_k_t top_k{};

}  // namespace ops

namespace detail {

/// Whether `lanes` segments that share a budget trigger. `count` entries and `budget` are sums over all segments.
template <class Rule>
[[nodiscard]] KVPOLICY_HD bool pool_triggers(Rule const& rule, int count, int budget, int lanes) {
  if constexpr (requires { rule.triggers(count, budget, lanes); }) {
    return rule.triggers(count, budget, lanes);
  } else {
    return rule.triggers(count, budget);
  }
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
