// Verb: the one entry of every segment that goes.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/rule.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::ops {

/// `argmin(exec, scores, rule, keep)`: per segment that triggers its lowest candidate; `keep` lists what is dropped.
///
/// - in: `scores` [segments, entries], float32; NaN is below every number, and -0 equals +0. `rule` as top_k's:
///   `budget(lane, count)`, `triggers(count, budget)`, `forces(entry)`, optional `candidates(lane_entries)`.
/// - out: `keep`, one ordinal a segment or none: a segment that does not trigger, or whose entries are all forced (the
///   report counts it), drops nothing.
/// - ties: the highest ordinal goes, so the lower ones stay.
/// - cost: one pass over the scores. No scratch.
/// - throws: `invalid_argument` if `keep` lists what is kept, or has no room for an ordinal a segment. On the host also
///   what a member of `rule` throws: then `keep` is as top_k leaves it.
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

/// `drop_listed(exec, keep, cache, list, columns)`: the listed entries go: lists of slots, positions and recorded
/// columns close up behind them, counts follow, and the slot of each stands behind its lane's end, where the engine
/// writes the next token. No row moves.
struct drop_listed_t : verb<drop_listed_t> {
  static constexpr auto name = "drop_listed";
  static constexpr void check(keep_set const&, cache const&, by_lane<int> const&, std::span<recorded_column const>) {}
};
inline constexpr drop_listed_t drop_listed{};

/// `count_dropped(exec, keep, lanes, stats)`: what a keep set of dropped entries came to, after it was carried out.
struct count_dropped_t : verb<count_dropped_t> {
  static constexpr void check(keep_set const&, lanes const&, apply_stats*) {}
};
inline constexpr count_dropped_t count_dropped{};

}  // namespace KVPOLICY_NAMESPACE::ops
