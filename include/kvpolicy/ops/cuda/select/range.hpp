// SPDX-License-Identifier: Apache-2.0
// Finds the k-th highest of some keys, by one block: histograms of the keys narrow the range that it is in.
#pragma once

#include <kvpolicy/ops/cuda/select/keys.hpp>

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

inline constexpr int histogram_bits = 11;
inline constexpr int histogram_bins = 1 << histogram_bits;

/// The width of a bin is 1 << bin_shift keys: the smallest power of two for which histogram_bins bins cover the range.
[[nodiscard]] KVPOLICY_HD inline int bin_shift(key_range const& range) {
  std::uint32_t const last = range.high - range.low;
  int const bits = last > 0 ? 32 - __builtin_clz(last) : 0;
  return bits > histogram_bits ? bits - histogram_bits : 0;
}

/// What decides about a single entry. It is in shared memory, because few groups are decided entry by entry, and the
/// loop over all groups has no register to spare.
struct entry_cut {
  int begin, end;  ///< the run
  int upto;        ///< the slice ends here
  std::uint32_t key;
  int last_tie;
};

/// The shared memory of a block that finds thresholds and emits the entries that they keep.
struct select_storage {
  std::uint32_t* histogram;  ///< histogram_bins
  collective_storage* collective;
  int* words;           ///< 6, for results that one thread passes to all, and 2 for list_begin()
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
  /// Where a segment's list begins.
  [[nodiscard]] KVPOLICY_HD std::int64_t* list_begin() const { return reinterpret_cast<std::int64_t*>(words + 6); }
  /// `words`, when no result is passed any more.
  [[nodiscard]] KVPOLICY_HD entry_cut* cut() const { return reinterpret_cast<entry_cut*>(words); }
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

/// The bins of a histogram that one thread adds up: `each` bins down from `first`.
struct some_bins {
  std::uint32_t const* counts;
  int first;
  int last;  ///< before the lowest

  template <class Block>
  KVPOLICY_HD some_bins(Block& block, std::uint32_t const* of) : counts(of) {
    int const each = (histogram_bins + block.threads() - 1) / block.threads();
    first = histogram_bins - 1 - block.thread() * each;
    last = first - each < -1 ? -1 : first - each;
  }
  template <class Sum>
  [[nodiscard]] KVPOLICY_HD Sum sum() const {
    Sum all = 0;
    for (int bin = first; bin > last; --bin) all += static_cast<Sum>(counts[bin]);
    return all;
  }
  /// If the k-th highest key is in these bins, writes its bin, its rank there and the bin's count to three words.
  /// `before` is how many keys are in higher bins, `mine` how many in these.
  template <class Sum>
  KVPOLICY_HD void choose(Sum k, Sum before, Sum mine, int* words) const {
    if (k <= before || before + mine < k) return;
    Sum left = k - before;
    int bin = first;
    while (static_cast<Sum>(counts[bin]) < left) left -= static_cast<Sum>(counts[bin--]);
    words[0] = bin;
    words[1] = static_cast<int>(left);
    words[2] = static_cast<int>(counts[bin]);
  }
};

/// The bin that holds the k-th highest key. `Sum` can hold the number of all keys. Collective. Before it, a barrier
/// makes all threads see the counts. The result is read from `temp_storage.words`, which must not be written before the
/// next barrier.
template <class Sum, class Block>
[[nodiscard]] KVPOLICY_HD chosen_bin choose_bin(Block& block, std::uint32_t const* counts, Sum k,
                                                select_storage const& temp_storage) {
  some_bins const bins(block, counts);
  Sum const mine = bins.template sum<Sum>();
  Sum const before = block.exclusive_sum(temp_storage.collective, mine).before;
  bins.choose(k, before, mine, temp_storage.words);
  block.sync();
  return {temp_storage.words[0], temp_storage.words[1], temp_storage.words[2]};
}

/// The bins that hold the keys of two ranks, and how many keys lie between.
struct chosen_bins {
  chosen_bin upper;  ///< of the lower rank
  chosen_bin lower;
  int between;  ///< keys in both bins and between them
};

/// As choose_bin, for two ranks, upper_rank <= lower_rank.
template <class Block>
[[nodiscard]] KVPOLICY_HD chosen_bins choose_bins(Block& block, std::uint32_t const* counts, int upper_rank,
                                                  int lower_rank, select_storage const& temp_storage) {
  some_bins const bins(block, counts);
  int const mine = bins.sum<int>();
  int const before = block.exclusive_sum(temp_storage.collective, mine).before;
  int* const words = temp_storage.words;
  bins.choose(upper_rank, before, mine, words);
  bins.choose(lower_rank, before, mine, words + 3);
  block.sync();
  chosen_bins made{{words[0], words[1], words[2]}, {words[3], words[4], words[5]}, 0};
  int const above = upper_rank - made.upper.left;  // keys above the upper bin
  made.between = lower_rank - made.lower.left + made.lower.count - above;
  return made;
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

/// Keys of which each block of a cluster reads a slice. `merged(block, histogram)` is the sum of the histograms of all
/// blocks, with barriers of the cluster before it and after it.
template <class Keys>
concept keys_of_cluster = requires { typename Keys::of_cluster; };

/// The threshold that keeps the k highest of the keys in a range. Each pass counts the keys of the range in 2048 bins
/// and goes on with the bin that holds the k-th highest. The search ends early where all keys of that bin are kept,
/// unless `exact_key` asks for a threshold that is itself a key. Collective.
template <class Block, class Keys>
[[nodiscard]] KVPOLICY_HD key_threshold threshold_in_range(Block& block, Keys const& keys, key_range range,
                                                           select_storage const& temp_storage, bool exact_key = false) {
  while (range.low < range.high) {
    clear_histogram(block, temp_storage.histogram);
    keys.for_each(block, count_in_bin<Block>{block, temp_storage.histogram, range, bin_shift(range)});
    std::uint32_t const* counts = temp_storage.histogram;
    if constexpr (keys_of_cluster<Keys>) {
      counts = keys.merged(block, temp_storage.histogram);
    } else {
      block.sync();
    }
    chosen_bin const chosen = choose_bin(block, counts, static_cast<int>(range.k), temp_storage);
    range = narrowed(range, chosen);
    if (chosen.count == chosen.left && !exact_key) return {range.low, all_ties};
  }
  return {range.low, static_cast<int>(range.k)};
}

}  // namespace KVPOLICY_NAMESPACE::detail
