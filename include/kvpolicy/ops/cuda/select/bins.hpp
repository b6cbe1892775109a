// SPDX-License-Identifier: Apache-2.0
// Keys counted in bins of equal width, and the bin that holds the k-th highest of them.
#pragma once

#include <kvpolicy/ops/cuda/select/keys.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The selection among some keys: it keeps the keys above `key`, and the first `ties` of the keys equal to it.
struct key_threshold {
  std::uint32_t key;
  int ties;
};
inline constexpr int all_ties = 0x7FFFFFFF;

inline constexpr int histogram_bins = 2048;
inline constexpr int most_cluster_blocks = 8;

/// Four neighbouring keys or counts, which one access reads.
struct [[gnu::may_alias]] alignas(16) four_keys {
  static constexpr int count = 4;
  std::uint32_t of[count];
};

/// The bins of the keys in [low, high]. A bin has 1 << shift keys and begins at a multiple of that.
struct bin_range {
  std::uint32_t low;
  std::uint32_t high;
  int shift;
  std::uint32_t base;  ///< key >> shift of the first bin

  /// As many bins as there are, or fewer, for all keys of a range.
  [[nodiscard]] KVPOLICY_HD static bin_range over(std::uint32_t low, std::uint32_t high) {
    int const shift = shift_for(low, high, histogram_bins);
    return {low, high, shift, low >> shift};
  }
  /// Bins for all keys, of which those in [low, high] are told apart. The first bin has the keys below, and the last
  /// one those above.
  [[nodiscard]] KVPOLICY_HD static bin_range around(std::uint32_t low, std::uint32_t high) {
    int const shift = max_op{}(shift_for(low, high, histogram_bins - 2), 1);
    return {nan_key, forced_key, shift, max_op{}(low >> shift, 1u) - 1};
  }
  [[nodiscard]] KVPOLICY_HD bool have(std::uint32_t key) const { return key - low <= high - low; }
  /// The bin of one of the keys.
  [[nodiscard]] KVPOLICY_HD int bin_of(std::uint32_t key) const {
    auto const bin = static_cast<int>((key >> shift) - base);
    return max_op{}(min_op{}(bin, histogram_bins - 1), 0);
  }
  /// The range of one bin's keys; it is wider than others at either end of `around`.
  [[nodiscard]] KVPOLICY_HD bin_range narrowed(int bin) const {
    std::uint32_t const first = (base + static_cast<std::uint32_t>(bin)) << shift;
    std::uint32_t const last = first + ((1u << shift) - 1u);
    return over(bin == 0 ? low : max_op{}(low, first), bin == histogram_bins - 1 ? high : min_op{}(high, last));
  }

 private:
  [[nodiscard]] KVPOLICY_HD static int shift_for(std::uint32_t low, std::uint32_t high, unsigned bins) {
    constexpr int bits_of_bin = 11;
    std::uint32_t const last = high - low;
    int const bits = last > 0 ? warp_size - __builtin_clz(last) : 0;
    int const shift = bits > bits_of_bin ? bits - bits_of_bin : 0;
    return (high >> shift) - (low >> shift) < bins ? shift : shift + 1;
  }
};

/// What a block of a cluster has collected of a bin: how many keys, and their range.
struct collected_keys {
  int count;
  std::uint32_t least, most;
};
/// How many entries a slice keeps in any case, and how many have the threshold's key.
struct slice_counts {
  int sure, ties;
};

/// What one segment has to select: the k highest of the entries in [begin, end) that compete.
struct segment_choice {
  int begin;
  int end;
  int k;          ///< how many of them are kept; below 0: the segment keeps all its entries
  int competing;  ///< how many entries compete: those that are not forced
};

/// The shared memory of a block that finds thresholds and lists the entries that they keep.
struct select_storage {
  static constexpr int list_most = 256;  ///< keys of a bin that are collected
  static constexpr int most_warps = 16;

  std::uint32_t* bins;  ///< histogram_bins
  std::uint32_t* list;  ///< two of list_most; before, the sample
  collective_storage* collective;
  int* words;                 ///< 8, for results that one thread passes to all
  int* of_warps;              ///< three numbers of each warp
  int* totals;                ///< of each block's share of the bins
  collected_keys* collected;  ///< of each block
  slice_counts* slices;       ///< of each block
  segment_choice* choice;
  std::uint32_t* keys;
  int tiles;  ///< of keys, for a whole slice; 0: there is one, and scores are read again for each pass

  template <class Block>
  KVPOLICY_HD select_storage(Block& block, int tiles_at_most) : tiles(tiles_at_most) {
    shared_arena arena(block);
    bins = arena.take<std::uint32_t>(histogram_bins);
    list = arena.take<std::uint32_t>(2 * list_most);
    collective = arena.take<collective_storage>(1);
    words = arena.take<int>(8);
    of_warps = arena.take<int>(3 * most_warps);
    totals = arena.take<int>(most_cluster_blocks);
    collected = arena.take<collected_keys>(most_cluster_blocks);
    slices = arena.take<slice_counts>(most_cluster_blocks);
    choice = arena.take<segment_choice>(1);
    keys = arena.take<std::uint32_t>(0);
  }
  [[nodiscard]] KVPOLICY_HD static constexpr int keys_of_tile(int threads) { return threads * 32; }
  [[nodiscard]] KVPOLICY_HD static constexpr std::size_t bytes_without_keys() {
    using arena = shared_arena;
    return arena::bytes_of_piece<std::uint32_t>(histogram_bins + 2 * list_most) + collective_bytes() +
           arena::bytes_of_piece<int>(8 + 3 * most_warps + most_cluster_blocks) +
           arena::bytes_of_piece<collected_keys>(most_cluster_blocks) +
           arena::bytes_of_piece<slice_counts>(most_cluster_blocks) + sizeof(segment_choice);
  }
  [[nodiscard]] static constexpr std::size_t bytes(int threads, int tiles) {
    return bytes_without_keys() + sizeof(std::uint32_t) * static_cast<std::size_t>(keys_of_tile(threads)) *
                                      static_cast<std::size_t>(tiles > 1 ? tiles : 1);
  }
  /// Clears the bins. They are clear after a barrier.
  template <class Block>
  KVPOLICY_HD void clear(Block& block) const {
    auto* const four = reinterpret_cast<four_keys*>(bins);
    for (int i = block.thread(); i < histogram_bins / four_keys::count; i += block.threads()) four[i] = {};
  }
};

/// A barrier of the cluster, or of the block alone.
template <class Block>
KVPOLICY_HD void sync_all(Block& block, bool cluster) {
  cluster ? block.sync_cluster() : block.sync();
}

struct chosen_bin {
  int bin;
  int left;   ///< the rank of the k-th highest key among the keys of the bin
  int count;  ///< keys in the bin
};

/// The bins that one thread adds up, of the share that a block of a cluster has: shares go down from the highest bin.
/// The sum over the blocks replaces this block's count, which nobody else reads.
struct some_bins {
  std::uint32_t* before;  ///< bins go down from here
  int share;
  int each;
  int begin;

  template <class Block>
  KVPOLICY_HD some_bins(Block& block, std::uint32_t* bins, int blocks, int rank) {
    constexpr int four = four_keys::count;
    share = histogram_bins / blocks;
    each = (share + four * block.threads() - 1) / (four * block.threads()) * four;
    before = bins + histogram_bins - rank * share;
    begin = block.thread() * each;
  }
  template <class Sum, class Block>
  [[nodiscard]] KVPOLICY_HD Sum sum(Block& block, int blocks, int rank) const {
    Sum all = 0;
    for (int at = 0; at < each; at += four_keys::count) {
      int const i = begin + at;
      if (i >= share) break;
      auto* const mine = reinterpret_cast<four_keys*>(before - i - four_keys::count);
      four_keys counts = *mine;
      for (int other = 0; other < blocks; ++other) {
        if (other == rank) continue;
        four_keys const theirs = *block.of_block(other, mine);
        for (int j = 0; j < four_keys::count; ++j) counts.of[j] += theirs.of[j];
      }
      if (blocks > 1) *mine = counts;
      for (std::uint32_t const count : counts.of) all += static_cast<Sum>(count);
    }
    return all;
  }
  /// The bin of the k-th highest key, which is in these bins.
  template <class Sum>
  [[nodiscard]] KVPOLICY_HD chosen_bin choose(Sum k, int bins_above) const {
    int i = begin;
    while (static_cast<Sum>(before[-1 - i]) < k) k -= static_cast<Sum>(before[-1 - i++]);
    return {histogram_bins - 1 - bins_above - i, static_cast<int>(k), static_cast<int>(before[-1 - i])};
  }
};

/// The bin that holds the k-th highest of the counted keys: of the whole cluster's, or of the block's alone. `Sum` can
/// hold the number of all keys. Collective for the cluster or the block, after a barrier of it; `words` may be written
/// after the next one.
template <bool Clustered, class Sum, class Block>
[[nodiscard]] KVPOLICY_HD chosen_bin choose_bin(Block& block, Sum k, select_storage const& storage, bool cluster) {
  int const blocks = Clustered && cluster ? block.cluster_blocks() : 1;
  int const rank = Clustered && cluster ? block.cluster_rank() : 0;
  some_bins const bins(block, storage.bins, blocks, rank);
  Sum const mine = bins.sum<Sum>(block, blocks, rank);
  auto const sum = block.exclusive_sum(storage.collective, mine);
  Sum before = sum.before;
  if (Clustered && blocks > 1) {
    if (block.thread() < blocks) *block.of_block(block.thread(), storage.totals + rank) = static_cast<int>(sum.all);
    block.sync_cluster();
    for (int i = 0; i < rank; ++i) before += storage.totals[i];
  }
  if (before < k && k <= before + mine) {
    chosen_bin const found = bins.choose(k - before, rank * (histogram_bins / blocks));
    for (int i = 0; i < blocks; ++i) {
      int* const to = Clustered && blocks > 1 ? block.of_block(i, storage.words) : storage.words;
      to[0] = found.bin;
      to[1] = found.left;
      to[2] = found.count;
    }
  }
  sync_all(block, Clustered && blocks > 1);
  return {storage.words[0], storage.words[1], storage.words[2]};
}

}  // namespace KVPOLICY_NAMESPACE::detail
