// Verb: the best entries of every segment.
#pragma once

#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/rule.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// A rule that keeps the k best and forces nothing: plain top-k.
struct plain_top_k {
  int k = 0;
  [[nodiscard]] KVPOLICY_HD int budget(lane, int) const { return k > 0 ? k : 0; }
  [[nodiscard]] KVPOLICY_HD bool triggers(int, int) const { return true; }
  [[nodiscard]] KVPOLICY_HD bool forces(entry) const { return false; }
  [[nodiscard]] KVPOLICY_HD ordinal_range candidates(lane_entries const& of) const { return {0, of.count}; }
};

namespace ops {

/// `top_k(exec, scores, rule, keep)`: per segment the forced entries and the best of the others, up to the budget.
///
/// - in: `scores` [segments, entries], float32; NaN ranks below every number, -inf included; -0 equals +0.
///   `rule` is a struct of KVPOLICY_HD members: `budget(lane, count)`, `triggers(count, budget)`, `forces(entry)`;
///   optional `candidates(lane_entries)`, the run of ordinals outside of which all entries are forced and inside none:
///   it spares the question about each entry;
///   optional `scope()`, which segments of a sequence pool their budgets and trigger together; `triggers(count, budget,
///   lanes)`, which is asked in such a pool, of the sums over its lanes, instead of `triggers(count, budget)`; and
///   `floor(budget)`, the best entries that each segment keeps before the pool is shared (forced ones among them).
/// - out: `keep`, strictly ascending ordinals. A segment that does not trigger lists all its entries.
///   k = max(0, budget - forced) of the others are kept; if the forced exceed the budget exactly they stay, and the
///   report says so. Scores are not written: who is a candidate is never said by a special score.
///   In a pool the forced of all segments count against the sum of budgets; if floors do not fit, entries within them
///   compete first.
/// - ties: the lower ordinal wins; in a pool the lower (layer, head, ordinal).
/// - cost: O(entries) a segment, never a sort: with `candidates`, one pass that brackets the cut from a sample of the
///   scores and one that emits; else three histogram passes and one emission. 2048 counters a worker as scratch, and
///   keys where the ordinals will be.
/// - throws: `invalid_argument` if `keep` has no room for every entry, lanes of one segment hold other tokens, a count
///   is out of its limits, or segments of a pool decide for more than one lane each. On the host also what a member of
///   `rule` throws: then `keep` lists nothing, is of no number of entries (`seen` is -1), and its report is empty;
///   scores are as they were.
struct top_k_t : verb<top_k_t> {
  static constexpr auto name = "top_k";

  template <class Scores, class Rule, class Keep>
  using hooks_of = detail::rule_hooks<Rule>;

  template <class Rule>
  static void check(score_view const& scores, Rule const&, keep_set const& keep) {
    expects(keep.capacity >= static_cast<std::int64_t>(scores.segments()) * scores.lanes.bound, "top_k",
            "keep.capacity", keep.capacity, "every entry of every segment must fit");
    expects(keep.decides == scores.decides, "top_k", "keep.decides", static_cast<int>(keep.decides),
            "scores and keep set are made by one granularity");
  }
};
inline constexpr top_k_t top_k{};

}  // namespace ops

namespace detail {

/// Whether a pool of `lanes` segments triggers: `count` entries of an allowed `budget`, both of all segments.
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
