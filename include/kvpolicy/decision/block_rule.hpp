// SPDX-License-Identifier: Apache-2.0
// Decisions about whole blocks of entries, and the pick `lowest`, which drops a part of them.
#pragma once

#include <kvpolicy/decision/rule.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/map_lanes.hpp>
#include <kvpolicy/ops/top_k.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// False for a scorer of this type whose entries never stay or go in blocks.
template <class Score>
inline constexpr bool may_have_blocks = [] {
  if constexpr (erased<Score> || has_blocks<Score>) {
    return true;
  } else if constexpr (stage<Score>) {
    return may_have_blocks<typename Score::wraps>;
  } else {
    return false;
  }
}();

/// True if decisions of a policy with this pick count what stays of a lane before they pick: see `block_rule`.
template <class Score, class Pick>
inline constexpr bool counts_before_picking = drops_part<Pick> || (std::same_as<Pick, top> && may_have_blocks<Score>);

/// A rule by which the members of a block stay or go together. All of them have the same score, so what is left beside
/// forced entries is filled by whole blocks, if its number is that of whole blocks: `entries_that_stay` finds it for
/// each lane before the verb picks. Without `kept` it is the rule inside.
template <class Rule>
struct block_rule : Rule {
  int size = 1;         ///< entries of a block
  bool beside = false;  ///< blocks fill the places beside forced entries: see `fills_beside_forced`
  lanes batch{};
  by_lane<int const> kept{};  ///< how many entries stay of each lane

  [[nodiscard]] KVPOLICY_HD bool counts() const { return kept.data != nullptr; }
  /// The entries of a block of a lane with so many entries. Of fewer entries than a block each is chosen alone.
  [[nodiscard]] KVPOLICY_HD int size_of(int count) const { return count < size && !beside ? 1 : size; }

  [[nodiscard]] KVPOLICY_HD int budget(lane this_lane, int count) const {
    return counts() ? *kept.row(this_lane) : Rule::budget(this_lane, count);
  }
  [[nodiscard]] KVPOLICY_HD bool triggers(int count, int allowed) const {
    return counts() ? count > allowed : Rule::triggers(count, allowed);
  }
  [[nodiscard]] KVPOLICY_HD bool triggers(int count, int allowed, int lanes) const {
    return counts() ? count > allowed : Rule::triggers(count, allowed, lanes);
  }
  [[nodiscard]] KVPOLICY_HD bool forces(entry at) const {
    if (!counts()) return Rule::forces(at);
    return forces_block(entries_of_lane(batch, at.lane), at.ordinal / size_of(at.count));
  }
  [[nodiscard]] KVPOLICY_HD ordinal_range candidates(lane_entries const& of) const
    requires requires(Rule const& rule) { rule.candidates(of); }
  {
    return counts() ? free_range(of) : Rule::candidates(of);
  }
  /// The entries of the blocks that are not forced, of a rule whose candidates are one range.
  [[nodiscard]] KVPOLICY_HD ordinal_range free_range(lane_entries const& of) const
    requires requires(Rule const& rule) { rule.candidates(of); }
  {
    int const length = size_of(of.count);
    ordinal_range const free = Rule::candidates(of_rule(of));
    auto const inside = [&](int e) { return e < 0 ? 0 : e < of.count ? e : of.count; };
    int begin = inside(free.begin), end = inside(free.end);
    if (int const past = begin % length; past != 0) {
      begin = of.count - begin > length - past ? begin + (length - past) : of.count;
    }
    if (end < of.count || whole_only()) end -= end % length;
    return {begin, end > begin ? end : begin};
  }
  template <class Visit>
  void visit_forced(lane_entries const& of, Visit const& visit) const
    requires requires(Rule const& rule) { rule.visit_forced(of, visit); }
  {
    if (!counts()) return Rule::visit_forced(of, visit);
    int const length = size_of(of.count);
    Rule::visit_forced(of_rule(of), [&](int ordinal) {
      int const begin = ordinal / length * length;
      for (int e = begin; e < begin + length && e < of.count; ++e) visit(e);
    });
  }

  /// True if a block has an entry that is forced.
  [[nodiscard]] KVPOLICY_HD bool forces_block(lane_entries of, int block) const {
    int const length = size_of(of.count);
    int const begin = block * length;
    int const end = begin + length < of.count ? begin + length : of.count;
    if (whole_only() && end - begin < length) return true;
    of = of_rule(of);
    if constexpr (requires { Rule::candidates(of); }) {
      ordinal_range const free = Rule::candidates(of);
      return begin < free.begin || end > free.end;
    } else {
      bool forced = false;
      for (int e = begin; e < end && !forced; ++e) {
        forced = Rule::forces(entry{of.lane, e, of.count, of.position[e], of.budget});
      }
      return forced;
    }
  }

 private:
  /// The entries of a lane with the budget that the rule inside has for it.
  [[nodiscard]] KVPOLICY_HD lane_entries of_rule(lane_entries of) const {
    of.budget = Rule::budget(of.lane, of.count);
    return of;
  }
  /// True if a shorter block at the end of a lane stays: a part is one of whole blocks.
  [[nodiscard]] KVPOLICY_HD bool whole_only() const { return beside || drops_part<decltype(Rule::pick)>; }
};

/// How many of a lane's blocks a budget keeps, at least one. `fitting` blocks fit into its entries. Of a ratio it is
/// that part of the blocks, truncated, as in published code.
template <class Budget>
KVPOLICY_HD constexpr int blocks_of_budget([[maybe_unused]] Budget const& limit, [[maybe_unused]] int blocks,
                                           int fitting) {
  int kept = fitting;
  if constexpr (requires { limit.dropped_part(); }) {
    if (limit.dropped_part() >= 0) kept = cut_part_of(1 - limit.dropped_part(), blocks);
  }
  return kept > 1 ? kept : 1;
}

/// How many entries of a lane stay, as a function of the lane.
template <class Rule>
struct entries_that_stay {
  block_rule<Rule> rule;
  score_view scores;

  using pick_type = decltype(Rule::pick);

  KVPOLICY_HD int operator()(lane_entries const& of) const {
    int const allowed = rule.budget(of.lane, of.count);
    if (!rule.triggers(of.count, budget_for_trigger<pick_type>(allowed))) return of.count;
    free_blocks const free = find(of);
    int const length = rule.size_of(of.count);
    if constexpr (drops_part<pick_type>) {
      if (of.count < rule.size) return of.count;
      return of.count - part_of(rule.pick.part, free.full) * length;
    } else {
      if (rule.beside) return beside_forced(of.count - free.full * length, free.full, allowed);
      if (of.count < rule.size) return allowed;
      int const all = (of.count + length - 1) / length;
      int const tail = free.has_tail ? 1 : 0;
      int const forced = all - free.full - tail;
      int const most = blocks_of_budget(rule.limit, all, allowed / length);
      if (most < forced) return most * length;  // forced entries stay, and the report counts the lane
      int const lost = most < all ? all - most : 0;
      bool const keeps_tail = !free.has_tail || before_tail(of) < most - forced;
      return of.count - (keeps_tail ? lost * length : (lost - 1) * length + of.count % length);
    }
  }

 private:
  /// The forced entries, and as many whole blocks as fit beside them.
  [[nodiscard]] KVPOLICY_HD int beside_forced(int forced, int free, int allowed) const {
    if (allowed < forced) return allowed;  // forced entries stay, and the report counts the lane
    int const fitting = (allowed - forced) / rule.size;
    return forced + (fitting < free ? fitting : free) * rule.size;
  }
  /// The blocks of a lane that are not forced.
  struct free_blocks {
    int full = 0;
    bool has_tail = false;  ///< and one that is shorter
  };
  [[nodiscard]] KVPOLICY_HD free_blocks find(lane_entries const& of) const {
    int const length = rule.size_of(of.count);
    free_blocks found;
    if constexpr (requires { rule.free_range(of); }) {
      ordinal_range const free = rule.free_range(of);
      found.full = (free.end - free.begin) / length;
      found.has_tail = (free.end - free.begin) % length != 0;
    } else {
      for (int b = 0; b * length < of.count; ++b) {
        if (rule.forces_block(of, b)) continue;
        bool const full = (b + 1) * length <= of.count;
        found.full += full ? 1 : 0;
        found.has_tail = !full;
      }
    }
    return found;
  }
  /// How many full blocks come before the last, shorter one: those of a score that is as high.
  [[nodiscard]] KVPOLICY_HD int before_tail(lane_entries const& of) const {
    float const* const row = scores.rows.row(of.lane);
    float const tail = row[of.count - 1];
    int found = 0, first = 0;
    if constexpr (requires { rule.free_range(of); }) first = rule.free_range(of).begin / rule.size;
    for (int b = first; (b + 1) * rule.size <= of.count; ++b) {
      float const score = row[b * rule.size];
      bool const is_higher = tail != tail || score >= tail;  // a NaN ranks last
      found += is_higher && !rule.forces_block(of, b) ? 1 : 0;
    }
    return found;
  }
};
template <class Rule>
entries_that_stay(block_rule<Rule>, score_view) -> entries_that_stay<Rule>;

/// Ranks the blocks anew, if the scorer does so, and returns the scores by which they are picked.
template <class Executor, class Score, class SignalSet, class Rule>
score_view rank_blocks(Executor& exec, Score const& score, SignalSet const& in, block_rule<Rule> const& rule,
                       score_view const& scores, by_lane<int> const& kept) {
  if constexpr (ranks_again<Score>) {
    if (!score.ranks_again()) return scores;
    std::int64_t const row = scores.lanes.capacity;
    auto const spare = [&](std::int64_t floats) {
      score_view made = contiguous_scores(scores.lanes, scores.decides, scores.spare + floats, scores.lanes.capacity);
      made.spare = scores.spare + 2 * scores.segments() * row;
      return made;
    };
    score_view const competing = spare(0), ranks = spare(scores.segments() * row);
    ops::map(exec, competing, zero_if_candidate{rule});
    score.rank_again(exec, in, competing, scores, ranks, kept);
    return ranks;
  } else {
    return scores;
  }
}

/// Picks whole blocks, or drops a part of what competes. `kept` is memory for a number of each lane.
template <class Executor, class Policy, class SignalSet, class Rule>
void pick_blocks(Executor& exec, resolved<Policy> const& of, SignalSet const& in, Rule const& rule,
                 score_view const& scores, by_lane<int> const& kept, keep_set const& keep) {
  int const size = of.scorer.block;
  block_rule<Rule> blocks{rule, size > 0 ? size : 1, of.scorer.fills_beside_forced, scores.lanes, {}};
  if (size == 0 && !drops_part<decltype(Rule::pick)>) return void(ops::top_k(exec, scores, blocks, keep));
  ops::map_lanes(exec, scores.lanes, entries_that_stay{blocks, scores}, kept);
  blocks.kept = {kept.data, kept.sequence, kept.layer, kept.head, kept.slots};
  ops::top_k(exec, rank_blocks(exec, of.policy.score, in, blocks, scores, kept), blocks, keep);
}

}  // namespace KVPOLICY_NAMESPACE::detail
