// The k-th best of a segment's keys, found by a block: a sample brackets it, one pass over the keys collects what lies
// inside the bracket, and histograms of the collected narrow it down. Exact: where the bracket misses, or holds more
// than there is room for, the histograms are of all keys.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/select_keys.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// What is kept of some keys: those above `lowest`, and the first `ties` of those equal to it.
struct cut_point {
  std::uint32_t lowest;
  int ties;
};
inline constexpr int all_ties = 0x7FFFFFFF;

/// Where to look for a cut: the k-th highest, k >= 1, of the keys in [low, high].
struct key_range {
  std::uint32_t low;
  std::uint32_t high;
  std::int64_t k;
};

inline constexpr int histogram_bins = 2048;

/// Keys share a bin if they have the same bits from this one on, counted from the range's lower end.
[[nodiscard]] KVPOLICY_HD inline int bin_shift(key_range const& range) {
  int shift = 0;
  while ((range.high - range.low) >> shift >= histogram_bins) ++shift;
  return shift;
}

/// Shared memory of a block that looks for cuts and emits what they keep.
struct select_storage {
  std::uint32_t* histogram;  ///< histogram_bins
  std::int64_t* sums;        ///< warp_size + 1
  int* words;                ///< 8
  unsigned* warps;           ///< 2 warp_size
  std::uint32_t* keys;       ///< capacity
  int capacity;

  template <class Block>
  KVPOLICY_HD select_storage(Block& block, int keys_at_most) : capacity(keys_at_most) {
    shared_arena arena(block);
    histogram = arena.take<std::uint32_t>(histogram_bins);
    sums = arena.take<std::int64_t>(warp_size + 1);
    words = arena.take<int>(8);
    warps = arena.take<unsigned>(2 * warp_size);
    keys = arena.take<std::uint32_t>(capacity);
  }
  [[nodiscard]] static constexpr std::size_t bytes(int keys_at_most) {
    return shared_arena::bytes_of_piece<std::uint32_t>(histogram_bins) + collective_bytes<std::int64_t>() +
           shared_arena::bytes_of_piece<int>(8) + shared_arena::bytes_of_piece<unsigned>(2 * warp_size) +
           shared_arena::bytes_of_piece<std::uint32_t>(keys_at_most);
  }
};

/// Keys that a block collects: what a sample of 1024 brackets of `bound` keys, and some more; so many that several
/// blocks share a processor.
[[nodiscard]] inline int keys_to_collect(launch_config const& numbers, int bound) {
  auto const most = (static_cast<std::int64_t>(numbers.shared_bytes) - std::int64_t{select_storage::bytes(0)}) / 4;
  std::int64_t keys = numbers.collected_keys > 0 ? numbers.collected_keys : bound / 6 + 1024;
  if (numbers.collected_keys <= 0 && keys < 4096) keys = 4096;
  if (keys > most) keys = most;
  return static_cast<int>(keys < warp_size ? warp_size : keys);
}

struct chosen_bin {
  int bin;
  int left;   ///< rank of the k-th among the bin's
  int count;  ///< of the bin
};

/// The bin of the k-th highest. Collective; the counts are seen by all threads before, and room.words is read until the
/// next barrier.
template <class Block>
[[nodiscard]] KVPOLICY_HD chosen_bin choose_bin(Block& block, std::uint32_t const* counts, std::int64_t k,
                                                select_storage const& temp_storage) {
  int const each = (histogram_bins + block.threads() - 1) / block.threads();
  int const first = histogram_bins - 1 - block.thread() * each;
  int const last = first - each < -1 ? -1 : first - each;
  std::int64_t mine = 0;
  for (int bin = first; bin > last; --bin) mine += counts[bin];
  std::int64_t const before = block_sum_before(block, mine, temp_storage.sums).before;
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

/// The part of a range that a bin of it is.
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

/// The cut that keeps the k highest of the keys in a range, by histograms of up to 2048 bins. `to_the_key`: goes on
/// until `lowest` is a key; else it ends where all that is left is kept. Collective.
template <class Block, class Keys>
[[nodiscard]] KVPOLICY_HD cut_point cut_within(Block& block, Keys const& keys, key_range range,
                                               select_storage const& temp_storage, bool to_the_key = false) {
  while (range.low < range.high) {
    clear_histogram(block, temp_storage.histogram);
    keys.for_each(block, count_in_bin<Block>{block, temp_storage.histogram, range, bin_shift(range)});
    block.sync();
    chosen_bin const chosen = choose_bin(block, temp_storage.histogram, range.k, temp_storage);
    range = narrowed(range, chosen);
    if (chosen.count == chosen.left && !to_the_key) return {range.low, all_ties};
  }
  return {range.low, static_cast<int>(range.k)};
}

/// Two keys between which a cut is looked for, and where the keys of a segment lie.
struct key_bracket {
  std::uint32_t low;
  std::uint32_t high;
  int above = 0;
  int at_high = 0;
  int inside = 0;
  int at_low = 0;  ///< 0 if low is high
  int nan = 0;
};

/// Counts a segment's keys by where they lie, and collects those inside, in any order.
template <class Block>
struct bracket_pass {
  Block& block;
  select_storage const& temp_storage;
  key_bracket& mine;  ///< this thread's; inside is the block's, in room.words[0]
  KVPOLICY_HD void operator()(std::uint32_t key) const {
    bool const is_key = key != order_forced;
    mine.nan += key == order_nan ? 1 : 0;
    mine.above += is_key && key > mine.high ? 1 : 0;
    mine.at_high += key == mine.high ? 1 : 0;
    mine.at_low += key == mine.low && mine.low != mine.high ? 1 : 0;
    bool const is_inside = mine.low < key && key < mine.high;
    unsigned const insiders = block.ballot(is_inside);
    if (insiders == 0) return;
    int first = lane_id(block) == 0 ? block.atomic_add(temp_storage.words, bits_in(insiders)) : 0;
    first = block.shuffle(first, 0) + bits_in(insiders & ((1u << lane_id(block)) - 1u));
    if (is_inside && first < temp_storage.capacity) temp_storage.keys[first] = key;
  }
};

/// See bracket_pass. All threads have the counts. Collective.
template <class Block, class Keys>
[[nodiscard]] KVPOLICY_HD key_bracket count_bracket(Block& block, Keys const& keys, key_bracket const& between,
                                                    select_storage const& temp_storage) {
  block.sync();  // a bin was read there
  if (block.thread() < 8) temp_storage.words[block.thread()] = 0;
  block.sync();
  key_bracket mine = between;
  keys.for_each(block, bracket_pass<Block>{block, temp_storage, mine});
  int const counts[4] = {mine.above, mine.at_high, mine.at_low, mine.nan};
  for (int i = 0; i < 4; ++i) {
    int const sum = warp_reduce(block, counts[i], add_up{});
    if (lane_id(block) == 0 && sum > 0) block.atomic_add(temp_storage.words + 1 + i, sum);
  }
  block.sync();
  key_bracket const all{between.low,           between.high,          temp_storage.words[1], temp_storage.words[2],
                        temp_storage.words[0], temp_storage.words[3], temp_storage.words[4]};
  block.sync();
  return all;
}

/// How many of what, in a segment.
struct cut_wish {
  int k;     ///< to be kept of those that compete
  int many;  ///< that compete
};

/// Keys between which the cut most probably lies, as a sample of the keys says. Collective.
template <class Block, class Keys>
[[nodiscard]] KVPOLICY_HD key_bracket guess_bracket(Block& block, Keys const& keys, cut_wish const& wish,
                                                    select_storage const& temp_storage) {
  constexpr int most = 1024;
  constexpr int neighbours = 8;  // a sector of memory
  int const size = (temp_storage.capacity < most ? temp_storage.capacity : most) / neighbours * neighbours;
  std::int64_t const last = keys.end - keys.begin - neighbours;
  int competing = 0;
  for (int i = block.thread(); i < size; i += block.threads()) {
    auto const at = static_cast<int>(i / neighbours * neighbours * last / (size - neighbours));
    temp_storage.keys[i] = keys.at(keys.begin + at + i % neighbours);
    competing += temp_storage.keys[i] != order_forced ? 1 : 0;
  }
  auto const sampled = static_cast<int>(block_reduce(block, std::int64_t{competing}, temp_storage.sums, add_up{}));
  float const share = static_cast<float>(wish.k) / static_cast<float>(wish.many);
  auto const rank = static_cast<int>(share * static_cast<float>(sampled));
  float const variance = static_cast<float>(sampled) * share * (1 - share);
  int const doubt = static_cast<int>(3.2f * ::sqrtf(variance > 0 ? variance : 0.0f)) + 4;
  key_bracket guess{order_below, order_above};
  listed_keys const sample{temp_storage.keys, size};
  if (rank + doubt <= sampled) {
    guess.low = cut_within(block, sample, {order_nan, order_above, rank + doubt}, temp_storage, true).lowest;
  }
  if (rank - doubt >= 1) {
    guess.high = cut_within(block, sample, {order_nan, order_above, rank - doubt}, temp_storage, true).lowest;
  }
  return guess;
}

struct found_point {
  cut_point at;
  int nan;  ///< keys of NaN
};

/// Where in a bracket the k-th highest is. Collective.
template <class Block, class Keys>
[[nodiscard]] KVPOLICY_HD cut_point cut_of_bracket(Block& block, Keys const& keys, key_bracket const& in, int k,
                                                   select_storage const& temp_storage) {
  if (k <= in.above) return cut_within(block, keys, {in.high + 1, order_above, k}, temp_storage);
  k -= in.above;
  if (k <= in.at_high) return {in.high, k};
  k -= in.at_high;
  key_range const inside{in.low + 1, in.high - 1, k};
  if (k <= in.inside && in.inside <= temp_storage.capacity) {
    return cut_within(block, listed_keys{temp_storage.keys, in.inside}, inside, temp_storage);
  }
  if (k <= in.inside) return cut_within(block, keys, inside, temp_storage);
  k -= in.inside;
  if (k <= in.at_low) return {in.low, k};
  return cut_within(block, keys, {order_nan, in.low - 1, k - in.at_low}, temp_storage);
}

/// The cut that keeps exactly the `k` best of those that compete, and how many of them are NaN. Collective.
template <class Block, class Keys>
[[nodiscard]] KVPOLICY_HD found_point find_point(Block& block, Keys const& keys, cut_wish const& wish,
                                                 select_storage const& temp_storage) {
  if (wish.k <= 0 || wish.k >= wish.many) {
    int const nan = count_bracket(block, keys, {order_above, order_above}, temp_storage).nan;
    return {{wish.k <= 0 ? order_above : order_below, 0}, nan};
  }
  key_bracket guess{order_below, order_above};
  if (keys.end - keys.begin > temp_storage.capacity) guess = guess_bracket(block, keys, wish, temp_storage);
  key_bracket const there = count_bracket(block, keys, guess, temp_storage);
  return {cut_of_bracket(block, keys, there, wish.k, temp_storage), there.nan};
}

}  // namespace KVPOLICY_NAMESPACE::detail
