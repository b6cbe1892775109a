// Verbs: find the entry of every segment that is dropped, drop it, and count what was dropped.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/rule.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::ops {

/// `argmin(exec, scores, rule, keep)`: `keep` lists, for each segment that triggers, the candidate with the lowest
/// score.
///
/// - in: `scores` [segments, entries], float32; NaN is below every number, and -0 equals +0. `rule` has the members
///   that `top_k` calls: `budget(lane, count)`, `triggers(count, budget)`, `forces(entry)`, and optionally
///   `candidates(lane_entries)`.
/// - out: `keep` lists dropped entries, at most one ordinal per segment. A segment drops nothing if it does not
///   trigger, or if all of its entries are forced, which the report counts.
/// - ties: the highest ordinal is dropped, so lower ordinals stay.
/// - cost: one pass over the scores. No scratch.
/// - throws: `invalid_argument` if `keep` lists kept entries, or its capacity is less than one ordinal per segment. On
///   the host it also passes on an exception of a member of `rule`; then `keep` is as `top_k` leaves it.
struct argmin_t : verb<argmin_t> {
  static constexpr auto name = "argmin";

  template <class Scores, class Rule, class Keep>
  using hooks_of = detail::rule_hooks<Rule>;

  template <class Rule>
  static void check(score_view const& scores, Rule const&, keep_set const& keep) {
    expects(keep.lists == side::dropped, "argmin", "keep.lists", "kept entries", "it lists the one that goes");
    expects(keep.capacity >= scores.segments(), "argmin", "keep.capacity", keep.capacity,
            "an ordinal of every segment must fit");
    expects(keep.decides == scores.decides, "argmin", "keep.decides", static_cast<int>(keep.decides),
            "scores and keep set are made by one granularity");
  }
};
inline constexpr argmin_t argmin{};

/// `drop_listed(exec, keep, cache, list, columns)`: removes the entries that `keep` lists as dropped. Later elements of
/// slot lists, positions and recorded columns move forward to close the gap, and counts are reduced. The slot of a
/// dropped entry is put directly behind its lane's last entry, where the engine writes the next token. No row moves.
struct drop_listed_t : verb<drop_listed_t> {
  static constexpr auto name = "drop_listed";
  static constexpr void check(keep_set const&, cache const&, by_lane<int> const&, std::span<recorded_column const>) {}
};
inline constexpr drop_listed_t drop_listed{};

/// `count_dropped(exec, keep, lanes, stats)`: overwrites `stats` with the counts of a keep set of dropped entries. It
/// is called after the entries were removed.
struct count_dropped_t : verb<count_dropped_t> {
  static constexpr void check(keep_set const&, lanes const&, apply_stats*) {}
};
inline constexpr count_dropped_t count_dropped{};

}  // namespace KVPOLICY_NAMESPACE::ops
