// SPDX-License-Identifier: Apache-2.0
// Verbs: find the entry of every segment that is dropped, drop it, and count what was dropped.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/rule.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::detail {

/// A function of an entry whose value ascends with positions, so that no score need be computed.
template <class Function>
concept ascends_in_position = requires { requires Function::ascends_in_position; };

}  // namespace KVPOLICY_NAMESPACE::detail

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

/// `argmin_of(exec, lanes_of, f, rule, keep)`: as `argmin` of the scores f(0, entry), which are not written anywhere.
///
/// - in: `lanes_of` says which lanes decide, each for itself; its table of scores is not read. A device uses it as
///   scratch. `f` as for `map`. It must not depend on the order of entries: `ordinal` is an index for it, and no rank.
///   If `f` has the member `static constexpr bool ascends_in_position = true`, its values ascend with positions, and
///   are not computed. If it has `float const* row(lane) const`, its values are the elements of that row.
/// - out, ties, throws: as `argmin`.
/// - cost: one pass over what `f` reads. O(1) for each lane if it ascends in position and the lane's order is known
///   (`lane_order`).
struct argmin_of_t : verb<argmin_of_t> {
  static constexpr auto name = "argmin_of";

  template <class Scores, class Function, class Rule, class Keep>
  using hooks_of = detail::map_hooks<Function>;

  template <class Function, class Rule>
  static void check(score_view const& scores, Function const&, Rule const& rule, keep_set const& keep) {
    expects(scores.decides == granularity::lane, "argmin_of", "scores.decides", static_cast<int>(scores.decides),
            "each lane decides for itself");
    argmin_t::check(scores, rule, keep);
  }
};
inline constexpr argmin_of_t argmin_of{};

/// `drop_listed(exec, keep, cache, list, columns)`: removes the entries that `keep` lists as dropped. Later elements of
/// slot lists, positions and recorded columns move forward to close the gap, and counts are reduced. The slot of a
/// dropped entry is put directly behind its lane's last entry, where the engine writes the next token. No row moves.
struct drop_listed_t : verb<drop_listed_t> {
  static constexpr auto name = "drop_listed";
  static constexpr void check(keep_set const&, cache const&, by_lane<int> const&, std::span<recorded_column const>) {}
};
inline constexpr drop_listed_t drop_listed{};

/// `replace_listed(exec, keep, cache, list, columns)`: removes the entries that `keep` lists as dropped. The lane's
/// newest entry takes the place of the dropped one (`lane_order` says exactly which entries move), so that O(1) numbers
/// of a lane move. With a list the slots change places, and that of the dropped entry comes directly behind the lane's
/// last entry. With a null list rows are copied. `cache.lanes.order` says how entries are ordered afterwards.
struct replace_listed_t : verb<replace_listed_t> {
  static constexpr auto name = "replace_listed";
  static constexpr void check(keep_set const&, cache const&, by_lane<int> const&, std::span<recorded_column const>) {}
};
inline constexpr replace_listed_t replace_listed{};

/// `sort_entries(exec, cache, list, columns)`: sorts the entries of lanes that are out of order (`lane_order`) by
/// position: lists, or with a null list rows of K and V, and positions and recorded columns.
struct sort_entries_t : verb<sort_entries_t> {
  static constexpr auto name = "sort_entries";
  static constexpr void check(cache const&, by_lane<int> const&, std::span<recorded_column const>) {}
};
inline constexpr sort_entries_t sort_entries{};

/// `count_dropped(exec, keep, lanes, stats)`: overwrites `stats` with the counts of a keep set of dropped entries. It
/// is called after the entries were removed.
struct count_dropped_t : verb<count_dropped_t> {
  static constexpr void check(keep_set const&, lanes const&, apply_stats*) {}
};
inline constexpr count_dropped_t count_dropped{};

}  // namespace KVPOLICY_NAMESPACE::ops
