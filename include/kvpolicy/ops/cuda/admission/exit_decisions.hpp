// SPDX-License-Identifier: Apache-2.0
// Counts the entries that leave windows, decides about them and counts what each lane gets, in one launch.
#pragma once

#include <algorithm>
#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/cuda/admission/promotion_counts.hpp>
#include <kvpolicy/ops/cuda/admission/window_counts.hpp>
#include <kvpolicy/ops/cuda/select/emit.hpp>
#include <kvpolicy/ops/cuda/select/marks.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The most entries that leave a lane, as far as the host knows.
[[nodiscard]] inline int most_exits(lanes const& window, ring_request const& asked) {
  std::int64_t tokens = 0;
  for (int const each : asked.host_tokens) tokens = std::max<std::int64_t>(tokens, each);
  std::int64_t const over = std::int64_t{window.capacity} - asked.window + tokens;
  return static_cast<int>(std::clamp<std::int64_t>(over, 0, window.capacity));
}

/// True if one launch can decide: it has the numbers of new tokens in its arguments, and few entries leave.
[[nodiscard]] inline bool fits_exit_decisions(lanes const& window, ring_request const& asked) {
  std::span<int const> const tokens = asked.host_tokens;
  auto const other = [&](int each) { return each != tokens.front(); };
  bool const listed = tokens.size() <= few_host_tokens::most || std::none_of(tokens.begin(), tokens.end(), other);
  return !tokens.empty() && listed && most_exits(window, asked) <= most_decided_exits;
}

/// The first bit that is set in a word that is not 0.
[[nodiscard]] KVPOLICY_HD constexpr int lowest_bit(std::uint32_t word) { return popcount((word & (0u - word)) - 1u); }
/// The last one.
[[nodiscard]] KVPOLICY_HD constexpr int highest_bit(std::uint32_t word) {
  for (int shift = 1; shift < warp_size; shift *= 2) word |= word >> shift;
  return popcount(word) - 1;
}

/// Offsets, report and ordinals of a decision about marked entries. `aux_count` of a result counts NaN.
struct finalize_exits {
  keep_set const& keep;
  entry_marks const& marks;
  [[nodiscard]] KVPOLICY_HD int number(packed_result result) const { return result.listed(); }
  KVPOLICY_HD void place(packed_result result, segment_place at, report& found) const {
    found.nan_scores += result.aux_count();
    int* next = keep.indices + at.before;
    std::uint32_t const* const row = marks.row(at.segment);
    for (int first = 0; first < keep.entry_count[at.segment]; first += warp_size) {
      for (std::uint32_t left = row[first / warp_size]; left != 0; left &= left - 1) *next++ = first + lowest_bit(left);
    }
  }
};

/// Counts the entries that leave, scores and marks them, and counts what their lane gets, one warp for each lane. The
/// last block lists the marked entries and assigns pages. A fault of this launch is reported by the last block, so that
/// no decision depends on which block comes first.
template <class Function, class Rule>
struct decide_exits_kernel {
  exit_counter counter;
  few_host_tokens tokens;  ///< the s-th sequence has number s % most: if there are more sequences, all have one number
  int* exits;
  score_view scores;
  Function score;
  Rule rule;
  keep_set keep;
  entry_marks marks;
  promotion_counts counts;
  int* ticket;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    counting_storage const shared(block);
    int const index = block.index() * (block.threads() / warp_size) + warp_id(block);
    if (index < scores.segments()) decide(block, index);
    if (!last_block(block, ticket, shared.last)) return;
    finalize_segments(block, keep, shared.collective, finalize_exits{keep, marks});
    block.sync();
    counts.add_up_lanes(block, shared.collective);
  }

 private:
  /// What a warp has decided about some entries of its lane: a bit for each.
  struct decided_word {
    std::uint32_t kept;
    std::uint32_t nan;
  };

  template <class Block>
  KVPOLICY_HD void decide(Block& block, int index) const {
    lane const this_lane = scores.lanes.at(index);
    int const which = (this_lane.sequence - counter.lanes.sequence_begin) % few_host_tokens::most;
    leaving_entries const leaving = counter(this_lane.sequence, tokens.of[which]);
    // Signals read the count in memory. Every lane of the sequence writes the same number.
    if (lane_id(block) == 0) exits[this_lane.sequence] = leaving.count;
    block.sync_warp();
    lane_growth growth(counts.to, counts.cap, index);
    segment_keys<Rule> keys(scores, rule, index);
    keys.about.count = leaving.count;
    bool const all = found_before(counts.faults);
    int kept = 0, nan = 0, oldest = 0, newest = 0;
    for (int first = 0; first < leaving.count; first += warp_size) {
      decided_word const now = decide_word(block, keys, first, all);
      if (lane_id(block) == 0) marks.row(index)[first / warp_size] = now.kept;
      if (now.kept != 0 && kept == 0) oldest = first + lowest_bit(now.kept);
      if (now.kept != 0) newest = first + highest_bit(now.kept);
      kept += popcount(now.kept);
      nan += popcount(now.nan);
    }
    if (lane_id(block) != 0) return;
    if (kept > 0) growth.add(0, kept, keys.position[oldest], keys.position[newest]);
    counts.promotions[index] = growth.finish();
    counts.promotions[index].note(leaving.fault);
    bool const drops = kept < leaving.count;
    bool const unobserved = drops && decides_unobserved(rule, scores, index);
    keep.note(index, this_lane, leaving.count);
    keep.indptr[index + 1] = packed_result::of(kept, nan, drops, unobserved).word;
  }

  /// Scores and decides about up to 32 entries, one for each thread of the warp.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD decided_word decide_word(Block& block, segment_keys<Rule> const& keys, int first,
                                                     bool all) const {
    int const ordinal = first + lane_id(block);
    bool stays = false;
    bool is_nan = false;
    if (ordinal < keys.count()) {
      float const now = score(0.0f, entry{keys.about.lane, ordinal, keys.count(), keys.position[ordinal], 0});
      scores.rows.row(keys.about.lane)[ordinal] = now;
      bool const forced = keys.is_forced(ordinal);
      stays = all || forced || picks_score(rule, now, keys.about.lane);
      is_nan = !forced && radix_key(now) == nan_key;
    }
    return {block.ballot(stays), block.ballot(is_nan)};
  }
};

template <class Executor, class Function, class Rule>
void launch_exit_decisions(Executor& exec, exit_decision<Function, Rule> const& decision, promoted const& leaving,
                           promotion_counts const& counts, std::uint32_t* marks) {
  auto const threads = exec.threads().segment;
  int const warps = threads / warp_size;
  int const blocks = (counts.to.lanes.size() + warps - 1) / warps;
  std::span<int const> const tokens = decision.asked.host_tokens;
  few_host_tokens listed;
  for (std::size_t i = 0; i < few_host_tokens::most; ++i) listed.of[i] = tokens[i < tokens.size() ? i : 0];
  exec.launch(launch_shape{blocks, threads, counting_storage::bytes()},
              decide_exits_kernel<Function, Rule>{{leaving.from->lanes, decision.asked.window},
                                                  listed,
                                                  decision.exits,
                                                  decision.scores,
                                                  decision.score,
                                                  decision.rule,
                                                  *leaving.keep,
                                                  {marks, most_decided_exits / warp_size},
                                                  counts,
                                                  exec.tickets()});
}

}  // namespace KVPOLICY_NAMESPACE::detail
