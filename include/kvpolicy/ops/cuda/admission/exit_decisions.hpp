// SPDX-License-Identifier: Apache-2.0
// Counts the entries that leave windows, decides about them and counts what each lane gets, in one launch.
#pragma once

#include <algorithm>
#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/cuda/admission/promotion_counts.hpp>
#include <kvpolicy/ops/cuda/admission/window_counts.hpp>
#include <kvpolicy/ops/cuda/select/emit.hpp>

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

/// Offsets, report and ordinals of a decision about entries that leave. `aux_count` of a result counts NaN.
struct finalize_exits {
  keep_set const& keep;
  std::uint8_t const* listed;
  [[nodiscard]] KVPOLICY_HD int number(packed_result result) const { return result.listed(); }
  KVPOLICY_HD void place(packed_result result, segment_place at, report& found) const {
    found.nan_scores += result.aux_count();
    std::uint8_t const* const row = listed + std::int64_t{at.segment} * most_decided_exits;
    for (int i = 0; i < result.listed(); ++i) keep.indices[at.before + i] = row[i];
  }
};

/// What is decided about the entries of a lane that leave.
struct decided_lane {
  lane_promotion growth{};
  int leaving = 0;
  int left = 0;  ///< entries that stay in the window, drafts included; -1: there is no lane
  int kept = 0;
  int nan = 0;
  bool unobserved = false;

  [[nodiscard]] KVPOLICY_HD bool drops() const { return kept < leaving; }
};

/// Counts the entries that leave a lane, scores them, lists those that are kept, and counts what the lane gets.
template <class Function, class Rule>
struct exit_decider {
  few_host_tokens tokens;  ///< the s-th sequence has number s % most: if there are more sequences, all have one number
  keep_set keep;           ///< the counts of its lanes are those of the entries that leave
  by_lane<int> count;      ///< of the window
  int* in_flight;
  int window;
  by_lane<float> rows;
  Function score;
  Rule rule;
  promotion_counts counts;

  exit_decider(exit_decision<Function, Rule> const& of, promoted const& leaving, promotion_counts const& in)
      : keep(*leaving.keep),
        count(leaving.from->lanes.count),
        in_flight(leaving.from->lanes.in_flight),
        window(of.asked.window),
        rows(of.scores.rows),
        score(of.score),
        rule(of.rule),
        counts(in) {
    std::span<int const> const all = of.asked.host_tokens;
    for (std::size_t i = 0; i < few_host_tokens::most; ++i) tokens.of[i] = all[i < all.size() ? i : 0];
  }

  [[nodiscard]] KVPOLICY_HD kvpolicy::lanes lanes_of_window() const {
    kvpolicy::lanes made = keep.lanes;
    made.count = count;
    made.in_flight = in_flight;
    return made;
  }

  /// Decides about a lane, by `width` neighbouring threads of a warp, which all get the result. All threads of the warp
  /// call this, those for which there is no lane (`is_there`) with the index of any other. Writes the ordinals of the
  /// entries that are kept to `listed`.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD decided_lane decide(Block& block, int index, bool is_there, int width,
                                                std::uint8_t* listed) const {
    lane const this_lane = keep.lanes.at(index);
    lane_growth growth(counts.to, counts.cap, index);
    int const which = (this_lane.sequence - keep.lanes.sequence_begin) % few_host_tokens::most;
    leaving_entries leaving = exit_counter{lanes_of_window(), window}(this_lane.sequence, tokens.of[which]);
    growth.begin();
    bool const all = found_before(counts.faults);
    int const thread = lane_id(block) & (width - 1);
    // Signals read the count in memory. Every lane of the sequence writes the same number.
    if (is_there && thread == 0) *keep.lanes.count.row(this_lane) = leaving.count;
    block.sync_warp();
    score_view const scores{keep.lanes, keep.decides, rows};
    segment_keys<Rule> keys(scores, rule, index);
    decided_lane made;
    if (!is_there) leaving = {0, -1, device_error::nothing};
    made.leaving = keys.about.count = leaving.count;
    made.left = leaving.left;
    std::uint32_t const of_lane = (0xFFFFFFFFu >> (warp_size - width)) << (lane_id(block) - thread);
    for (int first = 0; block.ballot(first < keys.count()) != 0; first += width) {
      decided_entry const now = decide_entry(keys, first + thread, all);
      std::uint32_t const kept = block.ballot(now.stays) & of_lane;
      int const before = popcount(kept & ((1u << lane_id(block)) - 1u));
      if (now.stays) listed[made.kept + before] = static_cast<std::uint8_t>(first + thread);
      made.kept += popcount(kept);
      made.nan += popcount(block.ballot(now.is_nan) & of_lane);
    }
    block.sync_warp();
    if (!is_there) return made;
    if (made.kept > 0) growth.add(0, made.kept, keys.position[listed[0]], keys.position[listed[made.kept - 1]]);
    made.growth = growth.finish();
    made.growth.note(leaving.fault);
    made.unobserved = made.drops() && decides_unobserved(rule, scores, index);
    if (thread == 0) keep.note(index, this_lane, leaving.count);
    return made;
  }

 private:
  struct decided_entry {
    bool stays = false;
    bool is_nan = false;
  };

  /// Scores an entry and decides about it, if there is one.
  [[nodiscard]] KVPOLICY_HD decided_entry decide_entry(segment_keys<Rule> const& keys, int ordinal, bool all) const {
    if (ordinal >= keys.count()) return {};
    float const now = score(0.0f, entry{keys.about.lane, ordinal, keys.count(), keys.position[ordinal], 0});
    rows.row(keys.about.lane)[ordinal] = now;
    bool const forced = keys.is_forced(ordinal);
    return {all || forced || picks_score(rule, now, keys.about.lane), !forced && radix_key(now) == nan_key};
  }
};

/// Decides about lanes, one warp for each. The last block writes the keep set and assigns pages. A fault of this
/// launch is reported by the last block, so that no decision depends on which block comes first.
template <class Function, class Rule>
struct decide_exits_kernel {
  exit_decider<Function, Rule> decider;
  std::uint8_t* listed;  ///< most_decided_exits of each lane
  int* ticket;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    counting_storage const shared(block);
    keep_set const& keep = decider.keep;
    int const index = block.index() * (block.threads() / warp_size) + warp_id(block);
    if (index < keep.segments()) {
      decided_lane const made =
          decider.decide(block, index, true, warp_size, listed + std::int64_t{index} * most_decided_exits);
      if (lane_id(block) == 0) {
        decider.counts.promotions[index] = made.growth;
        keep.indptr[index + 1] = packed_result::of(made.kept, made.nan, made.drops(), made.unobserved).word;
      }
    }
    if (!last_block(block, ticket, shared.last)) return;
    finalize_segments(block, keep, shared.collective, finalize_exits{keep, listed});
    block.sync();
    decider.counts.add_up_lanes(block, shared.collective);
  }
};

template <class Executor, class Function, class Rule>
void launch_exit_decisions(Executor& exec, exit_decider<Function, Rule> const& decider, std::uint8_t* listed) {
  auto const threads = exec.threads().segment;
  int const warps = threads / warp_size;
  int const blocks = (decider.keep.segments() + warps - 1) / warps;
  exec.launch(launch_shape{blocks, threads, counting_storage::bytes()},
              decide_exits_kernel<Function, Rule>{decider, listed, exec.tickets()});
}

}  // namespace KVPOLICY_NAMESPACE::detail
