// Finds the k-th highest of a segment's keys, by one block. A sample brackets it; one pass over all keys counts those
// above and below the bracket and collects those inside it in shared memory; histograms of the collected keys find it.
// The result is exact: if the bracket misses, or holds more keys than fit in shared memory, the histograms are of all
// keys.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/select_keys.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The selection among some keys: it keeps the keys above `key`, and the first `ties` of the keys equal to it.
struct key_threshold {
  std::uint32_t key;
  int ties;
};
inline constexpr int all_ties = 0x7FFFFFFF;

/// The keys in which a threshold is searched: it is the k-th highest, k >= 1, of the keys in [low, high].
struct key_range {
  std::uint32_t low;
  std::uint32_t high;
  std::int64_t k;
};

inline constexpr int histogram_bins = 2048;

/// The width of a bin is 1 << bin_shift keys: the smallest power of two for which histogram_bins bins cover the range.
[[nodiscard]] KVPOLICY_HD inline int bin_shift(key_range const& range) {
  int shift = 0;
  while ((range.high - range.low) >> shift >= histogram_bins) ++shift;
  return shift;
}

/// The shared memory of a block that finds thresholds and emits the entries that they keep.
struct select_storage {
  std::uint32_t* histogram;  ///< histogram_bins
  collective_storage* collective;
  int* words;           ///< 8, for results that one thread passes to all
  std::uint32_t* keys;  ///< capacity
  int capacity;

  template <class Block>
  KVPOLICY_HD select_storage(Block& block, int keys_at_most) : capacity(keys_at_most) {
    shared_arena arena(block);
    histogram = arena.take<std::uint32_t>(histogram_bins);
    collective = arena.take<collective_storage>(1);
    words = arena.take<int>(8);
    keys = arena.take<std::uint32_t>(capacity);
  }
  [[nodiscard]] KVPOLICY_HD static constexpr std::size_t bytes(int keys_at_most) {
    return shared_arena::bytes_of_piece<std::uint32_t>(histogram_bins) + collective_bytes() +
           shared_arena::bytes_of_piece<int>(8) + shared_arena::bytes_of_piece<std::uint32_t>(keys_at_most);
  }
};

/// How many keys a block collects in shared memory: as many as the bracket of a 1024-key sample of `bound` keys
/// probably holds, and some more, but so few that several blocks fit on a multiprocessor.
[[nodiscard]] inline int keys_to_collect(launch_config const& numbers, int bound) {
  auto const most = (static_cast<std::int64_t>(numbers.shared_bytes) - std::int64_t{select_storage::bytes(0)}) / 4;
  std::int64_t keys = numbers.collected_keys > 0 ? numbers.collected_keys : bound / 6 + 1024;
  if (numbers.collected_keys <= 0 && keys < 4096) keys = 4096;
  if (keys > most) keys = most;
  return static_cast<int>(keys < warp_size ? warp_size : keys);
}

struct chosen_bin {
  int bin;
  int left;   ///< the rank of the k-th highest key among the keys of the bin
  int count;  ///< keys in the bin
};

/// The bin that holds the k-th highest key. Collective. Before it, a barrier makes all threads see the counts. The
/// result is read from `temp_storage.words`, which must not be written before the next barrier.
template <class Block>
[[nodiscard]] KVPOLICY_HD chosen_bin choose_bin(Block& block, std::uint32_t const* counts, std::int64_t k,
                                                select_storage const& temp_storage) {
  int const each = (histogram_bins + block.threads() - 1) / block.threads();
  int const first = histogram_bins - 1 - block.thread() * each;
  int const last = first - each < -1 ? -1 : first - each;
  std::int64_t mine = 0;
  for (int bin = first; bin > last; --bin) mine += counts[bin];
  std::int64_t const before = block.exclusive_sum(temp_storage.collective, mine).before;
  if (before < k && k <= before + mine) {
    std::int64_t left = k - before;
    int bin = first;
    while (static_cast<std::int64_t>(counts[bin]) < left) left -= counts[bin--];
    temp_storage.words[0] = bin;
    temp_storage.words[1] = static_cast<int>(left);
    temp_storage.words[2] = static_cast<int>(counts[bin]);
  }
  block.sync();
  return {temp_storage.words[0], temp_storage.words[1], temp_storage.words[2]};
}

/// The keys of one bin of a range.
[[nodiscard]] KVPOLICY_HD inline key_range narrowed(key_range const& range, chosen_bin const& to) {
  int const shift = bin_shift(range);
  std::uint32_t const low = range.low + (static_cast<std::uint32_t>(to.bin) << shift);
  std::uint32_t const rest = range.high - low;
  std::uint32_t const width = (1u << shift) - 1u;
  return {low, low + (rest < width ? rest : width), to.left};
}

template <class Block>
KVPOLICY_HD void clear_histogram(Block& block, std::uint32_t* counts) {
  for (int bin = block.thread(); bin < histogram_bins; bin += block.threads()) counts[bin] = 0;
  block.sync();
}

template <class Block>
struct count_in_bin {
  Block& block;
  std::uint32_t* histogram;
  key_range range;
  int shift;
  KVPOLICY_HD void operator()(std::uint32_t key) const {
    if (key - range.low <= range.high - range.low) block.atomic_add(histogram + ((key - range.low) >> shift), 1u);
  }
};

/// The threshold that keeps the k highest of the keys in a range. Each pass counts the keys of the range in 2048 bins
/// and goes on with the bin that holds the k-th highest. The search ends early where all keys of that bin are kept,
/// unless `exact_key` asks for a threshold that is itself a key. Collective.
template <class Block, class Keys>
[[nodiscard]] KVPOLICY_HD key_threshold threshold_in_range(Block& block, Keys const& keys, key_range range,
                                                           select_storage const& temp_storage, bool exact_key = false) {
  while (range.low < range.high) {
    clear_histogram(block, temp_storage.histogram);
    keys.for_each(block, count_in_bin<Block>{block, temp_storage.histogram, range, bin_shift(range)});
    block.sync();
    chosen_bin const chosen = choose_bin(block, temp_storage.histogram, range.k, temp_storage);
    range = narrowed(range, chosen);
    if (chosen.count == chosen.left && !exact_key) return {range.low, all_ties};
  }
  return {range.low, static_cast<int>(range.k)};
}

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
struct bracket_pass {
  Block& block;
  select_storage const& temp_storage;
  key_bracket& mine;  ///< the counts of this thread; `inside` is counted for the block, in temp_storage.words[0]
  KVPOLICY_HD void operator()(std::uint32_t key) const {
    bool const is_key = key != forced_key;
    mine.nan += key == nan_key ? 1 : 0;
    mine.above += is_key && key > mine.high ? 1 : 0;
    mine.at_high += key == mine.high ? 1 : 0;
    mine.at_low += key == mine.low && mine.low != mine.high ? 1 : 0;
    bool const is_inside = mine.low < key && key < mine.high;
    unsigned const insiders = block.ballot(is_inside);
    if (insiders == 0) return;
    int first = lane_id(block) == 0 ? block.atomic_add(temp_storage.words, popcount(insiders)) : 0;
    first = block.shuffle(first, 0) + popcount(insiders & ((1u << lane_id(block)) - 1u));
    if (is_inside && first < temp_storage.capacity) temp_storage.keys[first] = key;
  }
};

struct side_counts {
  int above, at_high, at_low, nan;
};
struct add_counts {
  [[nodiscard]] KVPOLICY_HD side_counts operator()(side_counts const& a, side_counts const& b) const {
    return {a.above + b.above, a.at_high + b.at_high, a.at_low + b.at_low, a.nan + b.nan};
  }
};

/// Runs bracket_pass over all keys of a segment. All threads have the counts. Collective.
template <class Block, class Keys>
[[nodiscard]] KVPOLICY_HD key_bracket count_bracket(Block& block, Keys const& keys, key_bracket const& between,
                                                    select_storage const& temp_storage) {
  block.sync();  // choose_bin's result may still be read from `words`
  if (block.thread() == 0) temp_storage.words[0] = 0;
  block.sync();
  key_bracket mine = between;
  keys.for_each(block, bracket_pass<Block>{block, temp_storage, mine});
  side_counts const all =
      block.reduce(temp_storage.collective, side_counts{mine.above, mine.at_high, mine.at_low, mine.nan}, add_counts{});
  block.sync();
  return {between.low, between.high, all.above, all.at_high, temp_storage.words[0], all.at_low, all.nan};
}

/// How many entries of a segment compete, and how many of them are kept.
struct selection_size {
  int k;          ///< how many of the competing entries are kept
  int competing;  ///< how many entries compete
};

/// Two keys between which the threshold most probably lies, from a sample of up to 1024 keys. In the sample, the k-th
/// highest key should have the rank k / competing of the sampled keys. The bracket is from `doubt` ranks below it to
/// `doubt` ranks above it: 3.2 standard deviations of that rank, and four more. Collective.
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
  if (rank + doubt <= sampled) {
    guess.low = threshold_in_range(block, sample, {nan_key, above_all_keys, rank + doubt}, temp_storage, true).key;
  }
  if (rank - doubt >= 1) {
    guess.high = threshold_in_range(block, sample, {nan_key, above_all_keys, rank - doubt}, temp_storage, true).key;
  }
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
  if (k <= in.at_high) return {in.high, k};
  k -= in.at_high;
  key_range const inside{in.low + 1, in.high - 1, k};
  if (k <= in.inside && in.inside <= temp_storage.capacity) {
    return threshold_in_range(block, listed_keys{temp_storage.keys, in.inside}, inside, temp_storage);
  }
  if (k <= in.inside) return threshold_in_range(block, keys, inside, temp_storage);
  k -= in.inside;
  if (k <= in.at_low) return {in.low, k};
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
