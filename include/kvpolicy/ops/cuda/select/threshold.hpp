// SPDX-License-Identifier: Apache-2.0
// Finds the k-th highest of a segment's keys, by one block. A sample brackets it; one pass over all keys counts those
// above and below the bracket and collects those inside it in shared memory; histograms of the collected keys find it
// (select_range.hpp). The result is exact: if the bracket misses, or holds more keys than fit in shared memory, the
// histograms are of all keys.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/select/range.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Two keys that probably enclose the threshold, and how many keys of a segment lie above, at, between and below them.
struct key_bracket {
  std::uint32_t low;
  std::uint32_t high;
  int above = 0;    ///< keys above `high`, but for `forced_key`
  int at_high = 0;  ///< keys equal to `high`
  int inside = 0;   ///< keys between `low` and `high`
  int at_low = 0;   ///< keys equal to `low`; 0 if low is high
  int nan = 0;      ///< keys of NaN
};

/// Counts a segment's keys by their place relative to a bracket, and collects the keys inside it, in any order.
template <class Block>
class bracket_pass {
 public:
  /// `mine` are the counts of this thread; `inside` is counted for the block, in temp_storage.words[0].
  KVPOLICY_HD bracket_pass(Block& block, select_storage const& temp_storage, key_bracket& mine)
      : block_(block),
        storage_(temp_storage),
        mine_(mine),
        inside_(mine.low < mine.high ? mine.high - mine.low - 1 : 0) {}

  KVPOLICY_HD void operator()(four_keys const& keys) const {
    unsigned const below_me = (1u << lane_id(block_)) - 1u;
    bool is_inside[four_scores::count];
    int place[four_scores::count];
    int all = 0;
    bool is_counted = false;
    for (int j = 0; j < four_scores::count; ++j) {
      std::uint32_t const key = keys.of[j];
      mine_.above += key - mine_.high - 1 < forced_key - mine_.high - 1 ? 1 : 0;
      is_counted |= is_end(key);
      is_inside[j] = key - mine_.low - 1 < inside_;
      unsigned const insiders = block_.ballot(is_inside[j]);
      place[j] = all + popcount(insiders & below_me);
      all += popcount(insiders);
    }
    if (is_counted) count_ends(keys);
    if (all == 0) return;
    int first = lane_id(block_) == 0 ? block_.atomic_add(storage_.words, all) : 0;
    first = block_.shuffle(first, 0);
    for (int j = 0; j < four_scores::count; ++j) {
      if (is_inside[j] && first + place[j] < storage_.capacity) storage_.keys[first + place[j]] = keys.of[j];
    }
  }

 private:
  [[nodiscard]] KVPOLICY_HD bool is_end(std::uint32_t key) const {
    return (key == nan_key) | (key == mine_.high) | (key == mine_.low);
  }
  KVPOLICY_HD void count_ends(four_keys const& keys) const {
    for (std::uint32_t const key : keys.of) {
      mine_.nan += key == nan_key ? 1 : 0;
      mine_.at_high += key == mine_.high ? 1 : 0;
      mine_.at_low += key == mine_.low ? 1 : 0;
    }
  }

  Block& block_;
  select_storage const& storage_;
  key_bracket& mine_;
  std::uint32_t inside_;  ///< how many keys there can be inside the bracket
};

/// Adds a number of every thread to a word of shared memory. Collective of a warp.
template <class Block>
KVPOLICY_HD void add_to_word(Block& block, int* word, int mine) {
  int const of_warp = block.reduce_warp(mine, plus_op{});
  if (lane_id(block) == 0 && of_warp != 0) block.atomic_add(word, of_warp);
}

/// Runs bracket_pass over all keys of a segment. All threads have the counts. Collective.
template <class Block, class Keys>
[[nodiscard]] KVPOLICY_HD key_bracket count_bracket(Block& block, Keys const& keys, key_bracket const& between,
                                                    select_storage const& temp_storage) {
  int* const words = temp_storage.words;
  block.sync();  // choose_bin's result may still be read from `words`
  if (block.thread() < 5) words[block.thread()] = 0;
  block.sync();
  key_bracket mine = between;
  keys.for_each_group(block, bracket_pass<Block>(block, temp_storage, mine));
  add_to_word(block, words + 1, mine.above);
  add_to_word(block, words + 2, mine.at_high);
  add_to_word(block, words + 3, mine.at_low);
  add_to_word(block, words + 4, mine.nan);
  block.sync();
  int const at_low = between.low < between.high ? words[3] : 0;
  return {between.low, between.high, words[1], words[2], words[0], at_low, words[4]};
}

/// How many entries of a segment compete, and how many of them are kept.
struct selection_size {
  int k;          ///< how many of the competing entries are kept
  int competing;  ///< how many entries compete
};

/// What one segment has to select: the k highest of the entries in [begin, end) that compete.
struct segment_choice {
  int begin;
  int end;
  int k;          ///< how many of them are kept; below 0: the segment keeps all its entries
  int competing;  ///< how many entries compete: those that are not forced
};

/// Two keys that enclose those of two ranks of a sample, with at most `most` keys of it, or else as few as histograms
/// find. Collective.
template <class Block>
[[nodiscard]] KVPOLICY_HD key_bracket enclose(Block& block, listed_keys const& sample, int upper_rank, int lower_rank,
                                              int most, select_storage const& temp_storage) {
  key_range range{nan_key, above_all_keys, 0};
  for (;;) {
    int const shift = bin_shift(range);
    clear_histogram(block, temp_storage.histogram);
    sample.for_each(block, count_in_bin<Block>{block, temp_storage.histogram, range, shift});
    block.sync();
    chosen_bins const chosen = choose_bins(block, temp_storage.histogram, upper_rank, lower_rank, temp_storage);
    key_range const upper = narrowed(range, chosen.upper);
    key_range const lower = narrowed(range, chosen.lower);
    if (chosen.between <= most && shift > 0) {
      return {lower.low - 1, upper.high < above_all_keys ? upper.high + 1 : above_all_keys};
    }
    range = {lower.low, upper.high, 0};
    if (shift == 0 || bin_shift(range) == shift) return {lower.low, upper.high};
    lower_rank -= upper_rank - chosen.upper.left;
    upper_rank = chosen.upper.left;
  }
}

/// Two keys between which the threshold most probably lies, from a sample of up to 1024 keys. In the sample, the k-th
/// highest key should have the rank k / competing of the sampled keys. The bracket is from `doubt` ranks below it to
/// `doubt` ranks above it: 3.2 standard deviations of that rank, and four more. Of the segment's keys, those inside
/// should fit in shared memory. Collective.
template <class Block, class Keys>
[[nodiscard]] KVPOLICY_HD key_bracket sample_bracket(Block& block, Keys const& keys, selection_size const& wanted,
                                                     select_storage const& temp_storage) {
  constexpr int most = 1024;
  constexpr int neighbours = 8;  // 32 bytes, a sector of memory
  int const size = (temp_storage.capacity < most ? temp_storage.capacity : most) / neighbours * neighbours;
  std::int64_t const last = keys.end - keys.begin - neighbours;
  int competing = 0;
  for (int i = block.thread(); i < size; i += block.threads()) {
    auto const at = static_cast<int>(i / neighbours * neighbours * last / (size - neighbours));
    temp_storage.keys[i] = keys.at(keys.begin + at + i % neighbours);
    competing += temp_storage.keys[i] != forced_key ? 1 : 0;
  }
  block.sync();
  int const sampled = block.reduce(temp_storage.collective, competing, plus_op{});
  float const fraction = static_cast<float>(wanted.k) / static_cast<float>(wanted.competing);
  auto const rank = static_cast<int>(fraction * static_cast<float>(sampled));
  float const variance = static_cast<float>(sampled) * fraction * (1 - fraction);
  int const doubt = static_cast<int>(3.2f * ::sqrtf(variance > 0 ? variance : 0.0f)) + 4;
  key_bracket guess{below_all_keys, above_all_keys};
  listed_keys const sample{temp_storage.keys, size};
  if (rank + doubt <= sampled && rank - doubt >= 1) {
    std::int64_t const fit = std::int64_t{temp_storage.capacity} * 3 / 4 * sampled / wanted.competing;
    return enclose(block, sample, rank - doubt, rank + doubt, static_cast<int>(fit), temp_storage);
  }
  int const one = rank + doubt <= sampled ? rank + doubt : rank - doubt;
  if (one < 1) return guess;
  std::uint32_t const end = threshold_in_range(block, sample, {nan_key, above_all_keys, one}, temp_storage, true).key;
  (rank + doubt <= sampled ? guess.low : guess.high) = end;
  return guess;
}

struct found_threshold {
  key_threshold threshold;
  int nan;  ///< keys of NaN
};

/// The threshold of the k-th highest key, from the counts of a bracket. Collective.
template <class Block, class Keys>
[[nodiscard]] KVPOLICY_HD key_threshold threshold_in_bracket(Block& block, Keys const& keys, key_bracket const& in,
                                                             int k, select_storage const& temp_storage) {
  if (k <= in.above) return threshold_in_range(block, keys, {in.high + 1, above_all_keys, k}, temp_storage);
  k -= in.above;
  if (k <= in.at_high) return {in.high, k < in.at_high ? k : all_ties};
  k -= in.at_high;
  key_range const inside{in.low + 1, in.high - 1, k};
  if (k <= in.inside && in.inside <= temp_storage.capacity) {
    return threshold_in_range(block, listed_keys{temp_storage.keys, in.inside}, inside, temp_storage);
  }
  if (k <= in.inside) return threshold_in_range(block, keys, inside, temp_storage);
  k -= in.inside;
  if (k <= in.at_low) return {in.low, k < in.at_low ? k : all_ties};
  return threshold_in_range(block, keys, {nan_key, in.low - 1, k - in.at_low}, temp_storage);
}

/// The threshold that keeps exactly `wanted.k` of the competing entries, and how many of the competing entries are NaN.
/// Collective.
template <class Block, class Keys>
[[nodiscard]] KVPOLICY_HD found_threshold find_threshold(Block& block, Keys const& keys, selection_size const& wanted,
                                                         select_storage const& temp_storage) {
  if (wanted.k <= 0 || wanted.k >= wanted.competing) {
    int const nan = count_bracket(block, keys, {above_all_keys, above_all_keys}, temp_storage).nan;
    return {{wanted.k <= 0 ? above_all_keys : below_all_keys, 0}, nan};
  }
  key_bracket guess{below_all_keys, above_all_keys};
  if (keys.end - keys.begin > temp_storage.capacity) guess = sample_bracket(block, keys, wanted, temp_storage);
  key_bracket const there = count_bracket(block, keys, guess, temp_storage);
  return {threshold_in_bracket(block, keys, there, wanted.k, temp_storage), there.nan};
}

}  // namespace KVPOLICY_NAMESPACE::detail
