// Verb: the entries of every segment that a rule picks, one by one.
#pragma once

#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/rule.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `select_if(exec, scores, rule, keep)`: per segment the entries that are forced or whose score is picked.
///
/// - in: `scores` [segments, entries], float32. `rule`: KVPOLICY_HD `picks(float)`, which no NaN passes, and
///   `forces(entry)`. out: `keep`, strictly ascending ordinals; NaN scores are counted.
/// - cost: O(entries) a segment, one pass. No scratch.
/// - throws: `invalid_argument` if `keep` has no room for every entry. On the host also what a member of `rule` throws:
///   then `keep` is as top_k leaves it.
struct select_if_t : verb<select_if_t> {
  static constexpr auto name = "select_if";

  template <class Scores, class Rule, class Keep>
  using hooks_of = detail::picking_rule_hooks<Rule>;

  template <class Rule>
  static void check(score_view const& scores, Rule const&, keep_set const& keep) {
    expects(keep.capacity >= static_cast<std::int64_t>(scores.segments()) * scores.lanes.bound, "select_if",
            "keep.capacity", keep.capacity, "every entry of every segment must fit");
    expects(keep.decides == scores.decides, "select_if", "keep.decides", static_cast<int>(keep.decides),
            "scores and keep set are made by one granularity");
  }
};
inline constexpr select_if_t select_if{};

}  // namespace KVPOLICY_NAMESPACE::ops
