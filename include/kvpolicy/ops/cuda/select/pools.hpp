// SPDX-License-Identifier: Apache-2.0
// Budgets that several segments share (a pool of segments), one block for each segment. These are the first five of
// seven launches; the last two are in pools_emit.hpp.
//
// - clear_pools clears the histograms and the report.
// - survey_kernel counts the forced entries of a segment and finds the threshold of its floor, the number of entries
//   that the rule guarantees it. The last block of a pool sets up the search for the threshold of the pool.
// - pool_histogram_kernel runs three times. Each time it narrows the range of the pool's threshold by 11 bits, with a
//   histogram over all segments of the pool.
#pragma once

#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/cuda/select/emit.hpp>
#include <kvpolicy/ops/cuda/select/segments.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// A rule that can have segments share a budget.
template <class Rule>
concept may_pool = requires(Rule const& rule) { rule.scope(); };

template <class Rule>
[[nodiscard]] KVPOLICY_HD int floor_in_pool(Rule const& rule, int budget) {
  if constexpr (requires { rule.floor(budget); }) {
    return rule.floor(budget);
  } else {
    return 0;
  }
}

/// The state of a segment between launches.
struct pool_segment {
  int begin;  ///< entries in [begin, end) compete
  int end;
  int forced;
  int within;           ///< entries that are forced or within the segment's floor
  key_threshold floor;  ///< the threshold of the entries within the floor
  key_threshold at;     ///< the threshold of the entries that are kept
  int above;            ///< competing entries above the pool's threshold
  int equal;            ///< competing entries at the pool's threshold
  std::int64_t before;  ///< the sum over lower segments of their competing ties
};

/// The state of a pool between launches.
struct pool_state {
  std::uint32_t low;  ///< the range of its threshold, which is `low` once it is found
  std::uint32_t high;
  std::int64_t k;  ///< the threshold is the k-th highest of the competing keys in the range
  int fires;       ///< 1 if the trigger fires: the pool drops entries
  /// 1: all entries within floors are kept, and the others compete. 0: only entries within floors compete.
  int floors_fit;
  int is_found;  ///< 1 once the threshold is found
  int ticket;    ///< of last_of
};

/// The arguments of all kernels of a decision about pools.
struct pools_in {
  score_view scores;
  keep_set keep;
  int size;  ///< segments of a pool, which are neighbours
  pool_segment* segments;
  pool_state* pools;
  std::uint32_t* histograms;  ///< histogram_bins for each pool

  [[nodiscard]] KVPOLICY_HD int first_of(int segment) const { return segment / size * size; }
  [[nodiscard]] KVPOLICY_HD pool_state& pool_of(int segment) const { return pools[segment / size]; }
  [[nodiscard]] KVPOLICY_HD std::uint32_t* histogram_of(int segment) const {
    return histograms + static_cast<std::int64_t>(segment / size) * histogram_bins;
  }
  /// The keys of a segment whose [begin, end) survey_kernel has found.
  template <class Rule>
  [[nodiscard]] KVPOLICY_HD segment_keys<Rule> keys_of(Rule const& rule, int segment) const {
    segment_keys<Rule> keys(scores, rule, segment);
    keys.about.budget = rule.budget(keys.about.lane, keys.count());
    keys.begin = segments[segment].begin;
    keys.end = segments[segment].end;
    return keys;
  }
};

/// Bytes of scratch for these numbers of segments and pools.
[[nodiscard]] inline std::size_t pool_scratch(int segments, int pools) {
  return sizeof(pool_segment) * static_cast<std::size_t>(segments) +
         (sizeof(pool_state) + sizeof(std::uint32_t) * histogram_bins) * static_cast<std::size_t>(pools);
}

/// The first launch: clears histograms, tickets and the report.
struct clear_pools {
  pools_in in;
  KVPOLICY_HD void operator()(std::int64_t i) const {
    in.histograms[i] = 0;
    if (i % histogram_bins == 0) in.pools[i / histogram_bins].ticket = 0;
    if (i == 0) *in.keep.report = report{};
  }
};

/// The second launch: finds whether the pool's trigger fires, the forced entries of each segment, and the threshold of
/// its floor.
template <class Rule>
struct survey_kernel {
  pools_in in;
  Rule rule;
  int tiles;
  device_error faults;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index();
    select_storage const temp_storage(block, tiles);
    pool_totals const all = totals(block, segment, temp_storage);
    bool const fires = pool_triggers(rule, in_int(all.entries), in_int(all.allowed), in.size);
    // Once a fault is recorded, appliers do nothing.
    static_cast<void>(count_fits(block, in.scores.lanes, in.scores.lanes.at(segment), segment, faults));
    segment_keys<Rule> keys(in.scores, rule, segment);
    keys.about.budget = rule.budget(keys.about.lane, keys.count());
    pool_segment made{};
    if (fires) made = survey(block, keys, temp_storage);
    if (block.thread() == 0) {
      in.segments[segment] = made;
      in.keep.note(segment, keys.about.lane, keys.count());
    }
    if (!last_of(block, in.size, &in.pool_of(segment).ticket, temp_storage.words)) return;
    std::int64_t forced = 0;
    std::int64_t within = 0;
    for (int i = in.first_of(segment) + block.thread(); i < in.first_of(segment) + in.size; i += block.threads()) {
      forced += in.segments[i].forced;
      within += in.segments[i].within;
    }
    forced = block.reduce(temp_storage.collective, forced, plus_op{});
    block.sync();
    within = block.reduce(temp_storage.collective, within, plus_op{});
    if (block.thread() != 0) return;
    start_search(in.pool_of(segment), all, fires, forced, within);
    report_pool(block, in.first_of(segment), all, fires, forced);
  }

 private:
  struct pool_totals {
    std::int64_t entries;
    std::int64_t allowed;
  };
  [[nodiscard]] KVPOLICY_HD static int in_int(std::int64_t n) {
    return n < 0x7FFFFFFF ? static_cast<int>(n) : 0x7FFFFFFF;
  }

  template <class Block>
  [[nodiscard]] KVPOLICY_HD pool_totals totals(Block& block, int segment, select_storage const& temp_storage) const {
    pool_totals all{0, 0};
    for (int i = in.first_of(segment) + block.thread(); i < in.first_of(segment) + in.size; i += block.threads()) {
      lane const this_lane = in.scores.lane_of(i);
      int const count = in.scores.lanes.committed(this_lane);
      all.entries += count;
      all.allowed += rule.budget(this_lane, count);
    }
    all.entries = block.reduce(temp_storage.collective, all.entries, plus_op{});
    block.sync();
    all.allowed = block.reduce(temp_storage.collective, all.allowed, plus_op{});
    return all;
  }

  template <class Block>
  [[nodiscard]] KVPOLICY_HD pool_segment survey(Block& block, segment_keys<Rule>& keys,
                                                select_storage const& temp_storage) const {
    int const count = keys.count();
    int const forced = keys.find_forced(block, temp_storage.collective);
    int const floor = floor_in_pool(rule, keys.about.budget);
    int const best = floor <= forced ? 0 : (floor < count ? floor : count) - forced;
    key_threshold const found = threshold(block, keys, {keys.begin, keys.end, best, count - forced}, temp_storage);
    block.sync();
    if (block.thread() == 0) add_to_report(block, in.keep.report->nan_scores, temp_storage.words[6]);
    return {keys.begin, keys.end, forced, forced + best, found, {}, 0, 0, 0};
  }
  template <class Block>
  [[nodiscard]] KVPOLICY_HD key_threshold threshold(Block& block, segment_keys<Rule> const& keys,
                                                    segment_choice const& choice,
                                                    select_storage const& temp_storage) const {
    key_slice<Rule> const slice(keys, in.scores.lanes.capacity);
    slice_selection<selects::again, Block, Rule> const selection(block, slice, temp_storage);
    selection.draw_sample();
    block.sync();
    bin_range const bins = selection.sampled(choice.k, choice.competing);
    tile_scores first;
    slice.template load<0, groups_of_thread>(block, slice.from, first);
    selection.read(first, bins);
    if (choice.k <= 0) return {above_all_keys, 0};
    if (choice.k >= choice.competing) return {below_all_keys, 0};
    return selection.find(bins, keys.count() - choice.competing + choice.k);
  }

  KVPOLICY_HD void start_search(pool_state& pool, pool_totals const& all, bool fires, std::int64_t forced,
                                std::int64_t within) const {
    bool const fit = within <= (all.allowed < forced ? forced : all.allowed);
    std::int64_t const kept_already = fit ? within : forced;
    std::int64_t const most = (fit ? all.entries : within) - kept_already;
    std::int64_t const left = all.allowed < kept_already ? 0 : all.allowed - kept_already;
    pool.fires = fires ? 1 : 0;
    pool.floors_fit = fit ? 1 : 0;
    pool.is_found = left <= 0 || left >= most ? 1 : 0;
    pool.low = left <= 0 ? above_all_keys : left >= most ? below_all_keys : nan_key;
    pool.high = left > 0 && left >= most ? below_all_keys : above_all_keys;
    pool.k = pool.is_found != 0 ? 0 : left;
  }

  template <class Block>
  KVPOLICY_HD void report_pool(Block& block, int first, pool_totals const& all, bool fires, std::int64_t forced) const {
    report& found = *in.keep.report;
    add_to_report(block, found.over_budget, (fires ? forced : all.entries) > all.allowed ? 1 : 0);
    if (!fires) return;
    add_to_report(block, found.triggered, 1);
    add_to_report(block, found.forced_over_budget, forced > all.allowed ? 1 : 0);
    add_to_report(block, found.unobserved, decides_unobserved(rule, in.scores, first, in.size) ? 1 : 0);
  }
};

/// The third to fifth launch: a histogram of the pool's keys in the range of its threshold, and the bin that holds it.
template <class Rule>
struct pool_histogram_kernel {
  pools_in in;
  Rule rule;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index();
    pool_state& pool = in.pool_of(segment);
    if (pool.fires == 0 || pool.is_found != 0) return;
    bin_range const bins = bin_range::over(pool.low, pool.high);
    std::int64_t const k = pool.k;
    select_storage const temp_storage(block, 0);
    count(block, segment, bins, pool.floors_fit != 0, temp_storage);
    std::uint32_t* const of_pool = in.histogram_of(segment);
    for (int bin = block.thread(); bin < histogram_bins; bin += block.threads()) {
      if (temp_storage.bins[bin] > 0) block.atomic_add(of_pool + bin, temp_storage.bins[bin]);
    }
    if (!last_of(block, in.size, &pool.ticket, temp_storage.words)) return;
    for (int bin = block.thread(); bin < histogram_bins; bin += block.threads()) {
      temp_storage.bins[bin] = of_pool[bin];
      of_pool[bin] = 0;
    }
    block.sync();
    chosen_bin const chosen = choose_bin<false>(block, k, temp_storage, false);
    if (block.thread() != 0) return;
    bin_range const found = bins.narrowed(chosen.bin);
    pool.low = found.low;
    pool.high = found.high;
    pool.is_found = chosen.left == chosen.count || found.low == found.high ? 1 : 0;
    pool.k = chosen.left == chosen.count ? std::int64_t{1} << 62 : chosen.left;  // else all keys of the bin are kept
  }

 private:
  /// Counts competing keys in bins: those below the floor's threshold if floors fit, else those above it. Keys at the
  /// floor's threshold are counted apart, since only some of them are within the floor.
  template <class Block>
  KVPOLICY_HD void count(Block& block, int segment, bin_range const& bins, bool fit,
                         select_storage const& temp_storage) const {
    key_threshold const floor = in.segments[segment].floor;
    temp_storage.clear(block);
    block.sync();
    int at_floor = 0;
    segment_keys<Rule> const keys = in.keys_of(rule, segment);
    for_each_key(block, key_slice<Rule>(keys, in.scores.lanes.capacity), [&](std::uint32_t key) {
      if (key == forced_key) return;
      at_floor += key == floor.key ? 1 : 0;
      bool const competes = fit ? key < floor.key : key > floor.key;
      if (competes && bins.have(key)) block.atomic_add(temp_storage.bins + bins.bin_of(key), 1u);
    });
    at_floor = block.reduce(temp_storage.collective, at_floor, plus_op{});
    int const first = at_floor < floor.ties ? at_floor : floor.ties;
    int const competing = fit ? at_floor - first : first;
    if (block.thread() == 0 && competing > 0 && bins.have(floor.key)) {
      block.atomic_add(temp_storage.bins + bins.bin_of(floor.key), static_cast<std::uint32_t>(competing));
    }
    block.sync();
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
