// SPDX-License-Identifier: Apache-2.0
// Selects in every segment and lists what it keeps: a block for each segment, or a cluster where segments are long or
// few.
#pragma once

#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/cuda/run/lane_finder.hpp>
#include <kvpolicy/ops/cuda/select/choice.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// What blocks that decide by themselves count of the segments up to their own. Two counts are packed into one number.
struct outcomes_below {
  static constexpr int upper = 16;
  int listed = 0;  ///< entries that lower segments list
  int fired = 0;   ///< segments whose rule fires; in the upper half, those of them that are unobserved
  int over = 0;    ///< segments whose forced entries exceed the budget; in the upper half, those that exceed it at all
};

/// Without `choices`, lanes decide for themselves, by a rule that knows its run. How many entries a segment keeps then
/// follows from a few numbers, so that a block need not wait for others to know where its list begins. Only the number
/// of NaN scores crosses blocks: in the ticket, with the number of blocks that have added theirs.
template <class Rule, selects How>
struct select_kernel {
  static constexpr int least_blocks = !knows_run<Rule> || How == selects::again ? 1 : 3;
  score_view scores;
  lane_finder find;
  Rule rule;
  keep_set keep;
  segment_choice const* choices;  ///< null: the blocks decide
  int tiles;
  device_error faults;
  std::uint64_t* ticket;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const blocks = clustered ? block.cluster_blocks() : 1;
    int const segment = block.index() / blocks;
    select_storage const storage(block, tiles);
    segment_keys<Rule> keys(scores, rule, find.at(scores.lanes, first_lane(scores.lanes, scores.decides, segment)));
    key_slice<Rule> slice(keys, scores.lanes.capacity);
    if constexpr (clustered) slice.take(block.cluster_rank(), blocks);
    constexpr int few = 3;
    tile_scores first;
    slice.template load<0, few>(block, slice.from, first);  // a whole segment's do not wait for its count
    choose(block, keys, segment, storage);
    slice.template load<few, groups_of_thread>(block, slice.from, first);  // sooner, they would take more registers
    slice_selection<How, Block, Rule> const selection(block, slice, storage);
    selection.draw_sample();
    block.sync();
    segment_choice const choice = *storage.choice;
    keys.begin = choice.begin;
    keys.end = choice.end;
    if constexpr (!knows_run<Rule>) keys.about.budget = rule.budget(keys.about.lane, keys.count());
    int* const to = keep.indices + begin_of_list(block, choice, segment, selection);
    if (choice.k < 0) {
      list_all(block, slice.lowest(), slice.upto, to);
    } else {
      bin_range const bins = selection.sampled(choice.k, choice.competing);
      selection.read(first, bins);
      key_threshold const threshold = threshold_of(block, choice, keys.count(), selection, bins);
      slice_list<How, Block, Rule>(block, slice, storage, threshold).write(to);
    }
    if (block.thread() == 0) add_nan(block, storage.words[6]);
  }

 private:
  static constexpr bool clustered = How != selects::alone;

  [[nodiscard]] KVPOLICY_HD bool decides() const { return knows_run<Rule> && choices == nullptr; }

  /// Notes what the segment selects. Blocks that decide also note what they count of other segments, each warp for
  /// itself.
  template <class Block>
  KVPOLICY_HD void choose(Block& block, segment_keys<Rule>& keys, int segment, select_storage const& storage) const {
    if (!decides()) {
      if (block.thread() == 0) *storage.choice = choices[segment];
      return;
    }
    bool const stops = found_before(faults);
    note_below(block, segment, stops, storage);
    if (block.thread() == 0) {
      keep_set of_lanes = keep;
      of_lanes.decides = granularity::lane;
      if (block.cluster_rank() == 0) of_lanes.note(segment, keys.about.lane, keys.count());
      bool const fits = count_fits(block, scores.lanes, keys.about.lane, segment, faults);
      *storage.choice = outcome(keys, stops || !fits).choice;
    }
  }
  [[nodiscard]] KVPOLICY_HD segment_outcome outcome(segment_keys<Rule>& keys, bool differs) const {
    keys.about.budget = rule.budget(keys.about.lane, keys.count());
    keys.find_run();
    bool const fires = !differs && rule.triggers(keys.count(), keys.about.budget);
    return segment_outcome::of(keys, fires, keys.count() - (keys.end - keys.begin));
  }
  template <class Block>
  KVPOLICY_HD void note_below(Block& block, int segment, bool stops, select_storage const& storage) const {
    bool const reports = segment + 1 == scores.segments();
    outcomes_below mine;
    for (int s = block.thread(); s < segment + (reports ? 1 : 0); s += block.threads()) {
      segment_keys<Rule> keys(scores, rule, find.at(scores.lanes, s));
      segment_outcome const made = outcome(keys, stops || !counts_fit(scores.lanes, keys.about.lane));
      mine.listed += s < segment ? made.kept : 0;
      if (!reports) continue;
      bool const unobserved = made.fires && decides_unobserved(rule, scores, s);
      mine.fired += (made.fires ? 1 : 0) + (unobserved ? 1 << outcomes_below::upper : 0);
      mine.over += (made.forced_over ? 1 : 0) + (made.over ? 1 << outcomes_below::upper : 0);
    }
    int* const to = storage.of_warps + warp_id(block);
    note_of_warp(block, mine.listed, to);
    if (!reports) return;
    note_of_warp(block, mine.fired, to + select_storage::most_warps);
    note_of_warp(block, mine.over, to + 2 * select_storage::most_warps);
  }
  template <class Block>
  KVPOLICY_HD static void note_of_warp(Block& block, int number, int* to) {
    number = block.reduce_warp(number, plus_op{});
    if (lane_id(block) == 0) *to = number;
  }

  /// Where the segment's list begins. Blocks that decide write offsets and report.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD std::int64_t begin_of_list(Block& block, segment_choice const& choice, int segment,
                                                       slice_selection<How, Block, Rule> const& selection) const {
    if (!decides()) return keep.indptr[segment];
    int const before = block.reduce_warp(selection.of_warp(0), plus_op{});
    if (warp_id(block) != 0 || block.cluster_rank() != 0) return before;
    if (block.thread() == 0) {
      int const count = keep.entry_count[segment];
      keep.indptr[segment + 1] = before + (choice.k < 0 ? count : count - choice.competing + choice.k);
      if (segment == 0) keep.indptr[0] = 0;
    }
    if (segment + 1 == scores.segments()) write_report(block, selection);
    return before;
  }
  /// Everything but the number of NaN, by the first warp.
  template <class Block>
  KVPOLICY_HD void write_report(Block& block, slice_selection<How, Block, Rule> const& selection) const {
    constexpr int lower = (1 << outcomes_below::upper) - 1;
    int const fired = block.reduce_warp(selection.of_warp(1), plus_op{});
    int const over = block.reduce_warp(selection.of_warp(2), plus_op{});
    if (block.thread() != 0) return;
    keep.report->triggered = fired & lower;
    keep.report->unobserved = fired >> outcomes_below::upper;
    keep.report->forced_over_budget = over & lower;
    keep.report->over_budget = over >> outcomes_below::upper;
    keep.report->emptied = 0;
  }

  /// The threshold of a choice, once `read` has counted the keys. Forced ones have the highest key.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD key_threshold threshold_of(Block& block, segment_choice const& choice, int count,
                                                       slice_selection<How, Block, Rule> const& selection,
                                                       bin_range const& bins) const {
    if (0 < choice.k && choice.k < choice.competing) {
      return selection.find(bins, count - choice.competing + choice.k);
    }
    sync_all(block, clustered);  // other blocks' memory is not written before
    return {choice.k > 0 ? nan_key : forced_key, all_ties};
  }

  /// Adds a block's number of NaN. The last block that does so knows all of them.
  template <class Block>
  KVPOLICY_HD void add_nan(Block& block, int nan) const {
    if (!decides()) return add_to_report(block, keep.report->nan_scores, nan);
    constexpr int bits = 48;
    auto const mine = static_cast<std::uint64_t>(nan);
    std::uint64_t const before = block.atomic_add(ticket, (std::uint64_t{1} << bits) + mine);
    if (before >> bits != static_cast<std::uint64_t>(block.blocks() - 1)) return;
    keep.report->nan_scores = static_cast<std::int64_t>((before & ((std::uint64_t{1} << bits) - 1)) + mine);
    block.atomic_and(ticket, std::uint64_t{0});
  }
};

/// The threads of blocks that select: three such blocks fit on a multiprocessor.
template <class Executor>
[[nodiscard]] auto selecting_threads(Executor& exec) {
  return at_most<256>(exec.threads().segment);
}

/// How a launch divides segments.
struct selection_shape {
  int blocks;  ///< of a segment
  int tiles;   ///< of keys that a block keeps; 0: they do not fit

  /// A segment gets more than one block while its slices have more than two tiles, and while there are multiprocessors
  /// for them and every thread has four entries to read.
  template <class Executor>
  [[nodiscard]] static selection_shape of(Executor& exec, score_view const& scores, int most_blocks) {
    int const threads = selecting_threads(exec);
    std::int64_t const tile = select_storage::keys_of_tile(threads);
    auto const is_of_use = [&](std::int64_t blocks) {
      bool const few = blocks * scores.segments() <= exec.config().processors;
      return (few && 4 * blocks * threads <= scores.lanes.capacity) || slice(scores, blocks / 2) > 2 * tile;
    };
    int blocks = 1;
    while (2 * blocks <= most_blocks && is_of_use(2 * blocks)) blocks *= 2;
    std::int64_t const all = (slice(scores, blocks) + tile - 1) / tile;
    auto const without = static_cast<std::int64_t>(select_storage::bytes_without_keys());
    std::int64_t fit = (exec.config().shared_bytes - without) / (tile * std::int64_t{sizeof(std::uint32_t)});
    if (exec.config().resident_keys > 0) fit = min_op{}(fit, exec.config().resident_keys / tile);
    return {blocks, all <= fit ? static_cast<int>(all) : 0};
  }

 private:
  /// The most entries of a slice, with those before the first aligned one.
  [[nodiscard]] static std::int64_t slice(score_view const& scores, std::int64_t blocks) {
    constexpr std::int64_t four = four_keys::count;
    by_lane<float> const& rows = scores.rows;
    bool const aligned = reinterpret_cast<std::uintptr_t>(scores.row(0)) % sizeof(four_scores) == 0 &&
                         rows.sequence % four == 0 && rows.layer % four == 0 && rows.head % four == 0;
    std::int64_t const groups = (std::int64_t{scores.lanes.capacity} + (aligned ? 0 : four - 1) + four - 1) / four;
    return (groups + blocks - 1) / blocks * four;
  }
};

/// Launches select_kernel. `choices` are null where `decides_at_once`.
template <class Executor, class Rule>
void launch_selection(Executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep,
                      segment_choice const* choices) {
  auto const threads = selecting_threads(exec);
  selection_shape const shape = selection_shape::of(exec, scores, min_op{}(exec.clusters(), most_cluster_blocks));
  launch_shape const grid{scores.segments() * shape.blocks, threads, select_storage::bytes(threads, shape.tiles),
                          shape.blocks};
  auto* const ticket = reinterpret_cast<std::uint64_t*>(exec.tickets());
  lane_finder const find(scores.lanes);
  auto const launch = [&]<selects How>(std::integral_constant<selects, How>) {
    exec.launch(grid, select_kernel<Rule, How>{scores, find, rule, keep, choices, shape.tiles, exec.faults(), ticket});
  };
  if (shape.tiles == 0) return launch(std::integral_constant<selects, selects::again>{});
  if (shape.blocks > 1) return launch(std::integral_constant<selects, selects::in_clusters>{});
  launch(std::integral_constant<selects, selects::alone>{});
}

/// True if lanes decide and are listed in one launch. There are few of them, because each of their blocks counts what
/// the lower ones keep.
[[nodiscard]] inline bool decides_at_once(score_view const& scores) {
  constexpr int most_segments = 512;
  return scores.decides == granularity::lane && scores.segments() <= most_segments &&
         std::int64_t{scores.segments()} * scores.lanes.capacity <= 0x7FFFFFFF;
}

}  // namespace KVPOLICY_NAMESPACE::detail
