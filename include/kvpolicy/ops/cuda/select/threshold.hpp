// SPDX-License-Identifier: Apache-2.0
// Finds the k-th highest of a segment's keys, by one block or a cluster of them. A block reads the scores of its slice
// once and keeps their keys in shared memory. While it reads, it counts them in 2048 bins of the range of a sample. The
// keys of the bin that holds the k-th highest are collected in a list, in which one warp finds it bit by bit. The
// result is exact: if a bin holds more keys than the list, its keys are counted again where they are, in bins of their
// own range. Forced entries take part with the highest key.
#pragma once

#include <kvpolicy/ops/cuda/select/slice.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// How blocks select: one for each segment, a cluster for each, or either, where the keys of a slice do not fit in
/// shared memory. The first two are less code, and need fewer registers.
enum class selects { alone, in_clusters, again };

/// A block's slice of a segment, and the memory that it selects in. The blocks of a cluster call every member together.
template <selects How, class Block, class Rule>
class slice_selection {
 public:
  KVPOLICY_HD slice_selection(Block& block, key_slice<Rule> const& slice, select_storage const& storage)
      : block_(block),
        slice_(slice),
        storage_(storage),
        each_(select_storage::keys_of_tile(block.threads())),
        blocks_(clustered ? block.cluster_blocks() : 1) {}

  /// Draws a sample of the segment's keys, one for each thread, the same in all blocks of a cluster. The keys of a warp
  /// are of the whole segment, and ascend. After a barrier `sampled` has bins for them.
  KVPOLICY_HD void draw_sample() const {
    int const last = slice_.keys.count() - 1;
    std::uint32_t key = nan_key;
    if (last >= 0) {
      auto const threads = static_cast<unsigned>(block_.threads());
      auto const place =
          static_cast<unsigned>(lane_id(block_)) * (threads / warp_size) + static_cast<unsigned>(warp_id(block_));
      auto const step = static_cast<unsigned>(last) / threads;
      auto const rest = static_cast<unsigned>(last) % threads;
      key = score_key(slice_.keys.score[place * step + min_op{}(place, rest)]);
    }
    storage_.list[block_.thread()] = sorted(key);
    storage_.clear(block_);
    if (block_.thread() == 0) storage_.words[6] = 0;
  }
  /// Bins for the keys near the k-th highest of `count`, which very likely is between these: of the keys that warps
  /// have drawn, the lowest that has one rank less in its warp, and the highest that has one rank more.
  [[nodiscard]] KVPOLICY_HD bin_range sampled(int k, int count) const {
    constexpr int last = warp_size - 1;
    int const rank =
        last - static_cast<int>(static_cast<float>(k) / static_cast<float>(max_op{}(count, 1)) * warp_size);
    int const warp = lane_id(block_) % (block_.threads() / warp_size);
    std::uint32_t const* const drawn = storage_.list + warp * warp_size;
    std::uint32_t const low = drawn[max_op{}(rank - 1, 0)];
    std::uint32_t const high = drawn[min_op{}(rank + 1, last)];
    return bin_range::around(block_.reduce_warp(low, min_op{}), block_.reduce_warp(high, max_op{}));
  }
  /// Number `which` of those that warps have noted, each in a thread of its own; in other threads 0.
  [[nodiscard]] KVPOLICY_HD int of_warp(int which) const {
    int const lane = lane_id(block_);
    return lane < block_.threads() / warp_size ? storage_.of_warps[which * select_storage::most_warps + lane] : 0;
  }

  /// Reads the slice: keys are stored and counted. `scores` has the first tile's. Adds the number of NaN to words[6].
  KVPOLICY_HD void read(tile_scores scores, bin_range const& bins) const {
    int nan = 0;
    int const tiles = slice_.tiles(each_);
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (int tile = 0; tile < tiles;) {
      slice_.visit(block_, slice_.first_of(tile, each_), scores, nan,
                   [&](unsigned place, four_keys const& four, auto whole) {
                     *reinterpret_cast<four_keys*>(keys_of(tile) + place) = four;
                     for (std::uint32_t const key : four.of) {
                       bool const counts = decltype(whole)::value || key != below_all_keys;
                       if (counts) block_.atomic_add(storage_.bins + bins.bin_of(key), 1u);
                     }
                   });
      if (++tile == tiles) break;
      slice_.template load<0, groups_of_thread>(block_, slice_.first_of(tile, each_), scores);
    }
    nan = block_.reduce_warp(nan, plus_op{});
    if (nan != 0 && lane_id(block_) == 0) block_.atomic_add(storage_.words + 6, nan);
  }

  /// The threshold of the k highest keys that `read` has counted, 0 < k <= the number of entries.
  [[nodiscard]] KVPOLICY_HD key_threshold find(bin_range bins, int k) const {
    bool const cluster = clustered && blocks_ > 1;
    for (;;) {
      sync_all(block_, cluster);
      if (block_.thread() == 0) storage_.words[3] = 0;
      if (block_.thread() == 1) storage_.words[4] = static_cast<int>(forced_key);
      if (block_.thread() == 2) storage_.words[5] = static_cast<int>(below_all_keys);
      chosen_bin const chosen = choose_bin<clustered>(block_, k, storage_, cluster);
      bins = bins.narrowed(chosen.bin);
      k = chosen.left;
      if (chosen.left == chosen.count) return {max_op{}(bins.low, nan_key), all_ties};
      collected_keys const found = collected(collect(bins), cluster);
      if (found.least == found.most) return {found.least, k};
      if (chosen.count <= select_storage::list_most) return ranked(gathered(cluster), chosen.count, k, found);
      bins = bin_range::over(found.least, found.most);
      storage_.clear(block_);
      block_.sync();
      count_again(bins);
    }
  }

  /// Brings the keys of a tile to shared memory, if they are not there.
  KVPOLICY_HD void bring(int tile) const {
    if (How != selects::again || storage_.tiles > 0) return;
    block_.sync();
    unsigned const first = slice_.first_of(tile, each_);
#if defined(__CUDA_ARCH__)
#pragma unroll 2
#endif
    for (int r = 0; r < groups_of_thread; ++r) {
      unsigned const at = slice_.place(block_, r);
      *reinterpret_cast<four_keys*>(storage_.keys + at) = slice_.group(first + at);
    }
  }
  /// Bit 4 r + j says whether the key of entry j of the thread's group r in a tile is to be marked.
  template <class Mark>
  [[nodiscard]] KVPOLICY_HD unsigned marked(int tile, Mark const& mark) const {
    std::uint32_t const* const keys = keys_of(tile);
    unsigned marks = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int r = 0; r < groups_of_thread; ++r) {
      four_keys const four = *reinterpret_cast<four_keys const*>(keys + slice_.place(block_, r));
      for (int j = 0; j < four_keys::count; ++j) {
        marks |= mark(four.of[j]) ? 1u << (r * four_keys::count + j) : 0u;
      }
    }
    return marks;
  }
  /// Where the keys of a tile are.
  [[nodiscard]] KVPOLICY_HD std::uint32_t* keys_of(int tile) const {
    return storage_.keys + (How != selects::again || storage_.tiles > 0 ? tile * each_ : 0);
  }

 private:
  static constexpr bool clustered = How != selects::alone;

  /// Lists the slice's keys of a bin, of which the first fit. Returns the range of a thread's.
  [[nodiscard]] KVPOLICY_HD collected_keys collect(bin_range const& bin) const {
    collected_keys mine{0, forced_key, below_all_keys};
    int const tiles = slice_.tiles(each_);
    for (int tile = 0; tile < tiles; ++tile) {
      bring(tile);
      append(keys_of(tile) + slice_.place(block_, 0), marked(tile, [&](std::uint32_t key) { return bin.have(key); }),
             mine);
    }
    return mine;
  }
  /// Appends a thread's marked keys. `keys` are those of its first group.
  KVPOLICY_HD void append(std::uint32_t const* keys, unsigned marks, collected_keys& mine) const {
    if (marks == 0) return;
    int place = block_.atomic_add(storage_.words + 3, popcount(marks));
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (; marks != 0; marks &= marks - 1) {
      int const bit = popcount(~marks & (marks - 1));
      std::uint32_t const key = keys[bit / four_keys::count * warp_size * four_keys::count + bit % four_keys::count];
      if (place < select_storage::list_most) storage_.list[place] = key;
      ++place;
      mine.least = min_op{}(mine.least, key);
      mine.most = max_op{}(mine.most, key);
    }
  }
  KVPOLICY_HD void count_again(bin_range const& bins) const {
    auto const count = [&](std::uint32_t key) {
      if (bins.have(key)) block_.atomic_add(storage_.bins + bins.bin_of(key), 1u);
    };
    int const tiles = slice_.tiles(each_);
    for (int tile = 0; tile < tiles; ++tile) {
      bring(tile);
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
      for (int r = 0; r < groups_of_thread; ++r) {
        four_keys const four = *reinterpret_cast<four_keys const*>(keys_of(tile) + slice_.place(block_, r));
        for (std::uint32_t const key : four.of) count(key);
      }
    }
  }

  /// What has been collected, by all blocks of the cluster.
  [[nodiscard]] KVPOLICY_HD collected_keys collected(collected_keys const& mine, bool cluster) const {
    std::uint32_t const least = block_.reduce_warp(mine.least, min_op{});
    std::uint32_t const most = block_.reduce_warp(mine.most, max_op{});
    if (lane_id(block_) == 0 && least <= most) {
      block_.atomic_min(reinterpret_cast<unsigned*>(storage_.words + 4), least);
      block_.atomic_max(reinterpret_cast<unsigned*>(storage_.words + 5), most);
    }
    block_.sync();
    int const* const words = storage_.words;
    collected_keys all{words[3], static_cast<std::uint32_t>(words[4]), static_cast<std::uint32_t>(words[5])};
    if (!clustered || !cluster) return all;
    int const other = block_.thread();
    if (other < blocks_) *block_.of_block(other, storage_.collected + block_.cluster_rank()) = all;
    block_.sync_cluster();
    for (int i = 0; i < blocks_; ++i) {
      all.least = min_op{}(all.least, storage_.collected[i].least);
      all.most = max_op{}(all.most, storage_.collected[i].most);
    }
    return all;
  }
  /// The list of all blocks' collected keys, one after another, which fit in one.
  [[nodiscard]] KVPOLICY_HD std::uint32_t const* gathered(bool cluster) const {
    if (!clustered || !cluster) return storage_.list;
    std::uint32_t* to = storage_.list + select_storage::list_most;
    for (int other = 0; other < blocks_; ++other) {
      int const count = storage_.collected[other].count;
      std::uint32_t const* const theirs = block_.of_block(other, storage_.list);
      for (int i = block_.thread(); i < count; i += block_.threads()) to[i] = theirs[i];
      to += count;
    }
    block_.sync_cluster();
    return storage_.list + select_storage::list_most;
  }

  /// The threshold of the k highest keys of a list, whose range is `about`: the highest that at least k keys reach. One
  /// warp finds it bit by bit, until exactly k keys reach it.
  [[nodiscard]] KVPOLICY_HD key_threshold ranked(std::uint32_t const* list, int listed, int k,
                                                 collected_keys const& about) const {
    if (warp_id(block_) == 0) {
      auto const count_from = [&](std::uint32_t low) {
        int count = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
        for (int i = lane_id(block_); i < listed; i += warp_size) count += list[i] - about.least >= low ? 1 : 0;
        return block_.reduce_warp(count, plus_op{});
      };
      std::uint32_t reached = 0;
      int reaching = listed;
      for (std::uint32_t bit = 0x80000000u >> __builtin_clz(about.most - about.least); bit != 0 && reaching != k;
           bit >>= 1) {
        int const found = count_from(reached | bit);
        if (found < k) continue;
        reached |= bit;
        reaching = found;
      }
      int const ties = reaching == k ? all_ties : k - count_from(reached + 1);
      if (block_.thread() == 0) {
        storage_.words[0] = static_cast<int>(about.least + reached);
        storage_.words[1] = ties;
      }
    }
    block_.sync();
    return {static_cast<std::uint32_t>(storage_.words[0]), storage_.words[1]};
  }
  /// The keys of a warp, ascending: a bitonic sort.
  [[nodiscard]] KVPOLICY_HD std::uint32_t sorted(std::uint32_t key) const {
    int const lane = lane_id(block_);
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int size = 2; size <= warp_size; size *= 2) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
      for (int step = size / 2; step > 0; step /= 2) {
        std::uint32_t const other = block_.shuffle(key, lane ^ step);
        bool const keeps_lower = ((lane & step) == 0) == ((lane & size) == 0);
        key = keeps_lower ? min_op{}(key, other) : max_op{}(key, other);
      }
    }
    return key;
  }

  Block& block_;
  key_slice<Rule> const& slice_;
  select_storage const& storage_;
  int each_;    ///< keys of a tile
  int blocks_;  ///< of the cluster
};

}  // namespace KVPOLICY_NAMESPACE::detail
