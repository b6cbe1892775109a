// SPDX-License-Identifier: Apache-2.0
// Lists the entries of a slice that a threshold keeps, in ascending order. A thread marks its entries of a tile with a
// bit each. Sums of the marks give each entry its place, at which its ordinal is put into shared memory, over the keys
// of the tile. From there the ordinals are written in order, by neighbouring threads.
#pragma once

#include <kvpolicy/ops/cuda/select/threshold.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Writes all ordinals in [first, count), each at its own place behind `to`.
template <class Block>
KVPOLICY_HD void list_all(Block& block, int first, int count, int* to) {
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (int e = first + block.thread(); e < count; e += block.threads()) to[e] = e;
}

/// Lists what a block's slice keeps, after slice_selection has found the threshold.
template <selects How, class Block, class Rule>
class slice_list {
 public:
  /// `threshold` is that of the whole segment.
  KVPOLICY_HD slice_list(Block& block, key_slice<Rule> const& slice, select_storage const& storage,
                         key_threshold const& threshold)
      : block_(block),
        slice_(slice),
        storage_(storage),
        keys_(block, slice, storage),
        key_(threshold.key),
        all_(threshold.ties == all_ties),
        ties_(threshold.ties) {}

  /// Writes the segment's list from `to` on. Collective for the cluster.
  KVPOLICY_HD void write(int* to) {
    int const each = select_storage::keys_of_tile(block_.threads());
    int const tiles = slice_.tiles(each);
    bool const slices = How != selects::alone && block_.cluster_blocks() > 1;
    if (slices) to += before(tiles);
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (int tile = 0; tile < tiles; ++tile) {
      keys_.bring(tile);
      unsigned marks = slices && has_note(tile) ? *note(tile) : marked_sure(tile);
      unsigned const ties = marked_ties(tile);
      places at;
      for (bool of_ties = !all_;; of_ties = false) {
        at = places_of(of_ties ? ties : marks);
        block_.sync();  // at last, nobody needs the keys any more
        if (!of_ties) break;
        marks |= first_ties(ties, at);
      }
      write_tile(marks, at, slice_.first_of(tile, each), reinterpret_cast<int*>(keys_.keys_of(tile)), to);
      to += at.all;
    }
  }

 private:
  /// The places of a thread's first marked entry of each group, and how many entries of the block are marked.
  struct places {
    int of[groups_of_thread];
    int all;
  };

  /// A tile's entries that are kept in any case, and ties of which not all are.
  [[nodiscard]] KVPOLICY_HD unsigned marked_sure(int tile) const {
    std::uint32_t const least = all_ ? max_op{}(key_, nan_key) : key_ + 1;
    return keys_.marked(tile, [least](std::uint32_t key) { return key >= least; });
  }
  [[nodiscard]] KVPOLICY_HD unsigned marked_ties(int tile) const {
    return all_ ? 0 : keys_.marked(tile, [level = key_](std::uint32_t key) { return key == level; });
  }

  /// Of a tile's marked ties those that are kept.
  [[nodiscard]] KVPOLICY_HD unsigned first_ties(unsigned marks, places const& at) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int r = 0; r < groups_of_thread; ++r) {
      unsigned const group = 15u << (r * four_keys::count);
      for (int more = at.of[r] + popcount(marks & group) - ties_; more > 0 && (marks & group) != 0; --more) {
        marks &= ~(0x80000000u >> __builtin_clz(marks & group));
      }
    }
    ties_ -= at.all;
    return marks;
  }
  KVPOLICY_HD void write_tile(unsigned marks, places const& at, unsigned first, int* staged, int* to) const {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int r = 0; r < groups_of_thread; ++r) {
      int const ordinal = static_cast<int>(first + slice_.place(block_, r));
      int* next = staged + at.of[r];
      for (int j = 0; j < four_keys::count; ++j) {
        if ((marks >> (r * four_keys::count + j) & 1u) != 0) *next++ = ordinal + j;
      }
    }
    block_.sync();
    for (int i = block_.thread(); i < at.all; i += block_.threads()) to[i] = staged[i];
  }

  /// Of eight groups, four at a time have their sums in the bytes of one word: a warp has 128 entries in a row.
  [[nodiscard]] KVPOLICY_HD places places_of(unsigned marks) const {
    constexpr int of_word = 4;
    unsigned of_pairs = marks - (marks >> 1 & 0x55555555u);
    unsigned const of_groups = (of_pairs & 0x33333333u) + (of_pairs >> 2 & 0x33333333u);
    unsigned lower[2], of_rows[2];
    int of_warp = 0;
    for (int w = 0; w < 2; ++w) {  // of even groups, and of odd ones
      unsigned const mine = of_groups >> (of_word * w) & 0x0F0F0F0Fu;
      unsigned const upto = sum_upto(mine);
      of_rows[w] = block_.shuffle(upto, warp_size - 1);
      lower[w] = upto - mine;
      unsigned const pairs = (of_rows[w] & 0x00FF00FFu) + (of_rows[w] >> 8 & 0x00FF00FFu);
      of_warp += static_cast<int>((pairs & 0xFFFFu) + (pairs >> 16));
    }
    auto const sum = block_.exclusive_sum(storage_.collective, lane_id(block_) == 0 ? of_warp : 0);
    int before = block_.shuffle(sum.before, 0);
    places made{{}, sum.all};
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int r = 0; r < groups_of_thread; ++r) {
      int const byte = r / 2 * 8;
      made.of[r] = before + static_cast<int>(lower[r % 2] >> byte & 255u);
      before += static_cast<int>(of_rows[r % 2] >> byte & 255u);
    }
    return made;
  }
  /// The sum over the threads of the warp up to this one.
  [[nodiscard]] KVPOLICY_HD unsigned sum_upto(unsigned sum) const {
    int const lane = lane_id(block_);
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int step = 1; step < warp_size; step *= 2) {
      unsigned const other = block_.shuffle(sum, lane - step);
      if (lane >= step) sum += other;
    }
    return sum;
  }

  /// Where a thread notes its marks of a tile, as long as there is room: over the bins, which nobody needs any more.
  [[nodiscard]] KVPOLICY_HD std::uint32_t* note(int tile) const {
    return storage_.bins + tile * block_.threads() + block_.thread();
  }
  [[nodiscard]] KVPOLICY_HD bool has_note(int tile) const { return (tile + 1) * block_.threads() <= histogram_bins; }

  /// How many entries the lower slices of the segment list. Notes marks of sure entries. Leaves this slice the ties
  /// that they leave.
  [[nodiscard]] KVPOLICY_HD int before(int tiles) {
    slice_counts mine{};
    for (int tile = 0; tile < tiles; ++tile) {
      keys_.bring(tile);
      unsigned const marks = marked_sure(tile);
      if (has_note(tile)) *note(tile) = marks;
      mine.sure += popcount(marks);
      mine.ties += popcount(marked_ties(tile));
    }
    mine.sure = block_.reduce(storage_.collective, mine.sure, plus_op{});
    block_.sync();
    if (!all_) mine.ties = block_.reduce(storage_.collective, mine.ties, plus_op{});
    int const rank = block_.cluster_rank();
    int const other = block_.thread();
    if (other < block_.cluster_blocks()) *block_.of_block(other, storage_.slices + rank) = mine;
    block_.sync_cluster();
    int listed = 0;
    for (int i = 0; i < rank; ++i) {
      int const ties = min_op{}(storage_.slices[i].ties, ties_);
      listed += storage_.slices[i].sure + ties;
      if (!all_) ties_ -= ties;
    }
    return listed;
  }

  Block& block_;
  key_slice<Rule> const& slice_;
  select_storage const& storage_;
  slice_selection<How, Block, Rule> keys_;
  std::uint32_t key_;
  bool all_;  ///< all ties are kept
  int ties_;  ///< of this slice, if not all are kept
};

}  // namespace KVPOLICY_NAMESPACE::detail
