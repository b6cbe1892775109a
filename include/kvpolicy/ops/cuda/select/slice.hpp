// SPDX-License-Identifier: Apache-2.0
// The slice of a segment that one block reads, in tiles of groups of four neighbouring entries.
#pragma once

#include <kvpolicy/ops/cuda/select/bins.hpp>
#include <type_traits>

namespace KVPOLICY_NAMESPACE::detail {

/// Four neighbouring scores, which one load reads.
struct [[gnu::may_alias]] alignas(16) four_scores {
  float of[four_keys::count];
};

/// How many groups of a tile a thread has. A warp has 1024 neighbours: eight rows of 32 groups.
inline constexpr int groups_of_thread = 8;

/// A thread's groups of a tile, as they are loaded.
struct tile_scores {
  four_scores of[groups_of_thread];
};

/// A slice of a segment's entries. Groups begin at an ordinal that is aligned to 16 bytes in memory, which is 0 or
/// negative in the first slice: then no entry is before ordinal 0. Ordinals of groups are unsigned, because they may be
/// behind the last that an int can hold.
template <class Rule>
struct key_slice {
  static constexpr unsigned of_group = four_keys::count;

  segment_keys<Rule> const& keys;
  unsigned bound;  ///< entries for which the row has memory
  unsigned from;   ///< groups begin here
  int upto;        ///< the slice ends here

  /// The whole segment. Its entries may be set later.
  KVPOLICY_HD key_slice(segment_keys<Rule> const& of, int capacity)
      : keys(of), bound(static_cast<unsigned>(capacity)), from(first_group()), upto(of.about.count) {}

  /// Keeps one of `blocks` slices, which follow one another. Each but the last is whole groups, and an empty one behind
  /// them begins with a group, too: loads do not ask whether a slice has entries.
  KVPOLICY_HD void take(int rank, int blocks) {
    unsigned const all = static_cast<unsigned>(keys.about.count) - first_group();
    unsigned const shares = static_cast<unsigned>(blocks);
    unsigned const groups = (all + of_group - 1) / of_group;
    unsigned const each = (groups + shares - 1) / shares * of_group;
    unsigned const before = min_op{}(static_cast<unsigned>(rank) * each, groups * of_group);
    from = first_group() + before;
    upto = static_cast<int>(from + (before < all ? min_op{}(each, all - before) : 0u));
  }
  /// The first entry of the slice.
  [[nodiscard]] KVPOLICY_HD int lowest() const { return max_op{}(static_cast<int>(from), 0); }
  /// How many tiles the slice has.
  [[nodiscard]] KVPOLICY_HD int tiles(int keys_of_tile) const {
    auto const each = static_cast<unsigned>(keys_of_tile);
    return static_cast<int>((static_cast<unsigned>(upto) - from + each - 1) / each);
  }
  /// The first entry of group `row` of a thread, counted from the begin of a tile. It is also the place of its keys.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD static unsigned place(Block& block, int row) {
    int const warp = warp_id(block) * groups_of_thread + row;
    return static_cast<unsigned>(warp * warp_size + lane_id(block)) * of_group;
  }
  [[nodiscard]] KVPOLICY_HD unsigned first_of(int tile, int keys_of_tile) const {
    return from + static_cast<unsigned>(tile) * static_cast<unsigned>(keys_of_tile);
  }

  /// Loads a group, without asking for the count. In place of one that the row's memory does not hold wholly, another
  /// is loaded.
  [[nodiscard]] KVPOLICY_HD four_scores load(unsigned first) const {
    unsigned const lead = first_group() & (of_group - 1);
    if (bound < lead + of_group) return {};
    unsigned const last = (bound - lead) / of_group * of_group - of_group;
    return *reinterpret_cast<four_scores const*>(keys.score + lead + min_op{}(first - lead, last));
  }
  /// Loads the thread's groups `Begin` to `End` of the tile that begins at `first`.
  template <int Begin, int End, class Block>
  KVPOLICY_HD void load(Block& block, unsigned first, tile_scores& scores) const {
    unsigned const lead = first_group() & (of_group - 1);
    unsigned const begin = first + place(block, Begin) - lead;
    constexpr unsigned next = warp_size * of_group;
    constexpr unsigned span = next * (End - Begin - 1) + of_group;
    if (bound >= lead + span && begin <= bound - lead - span) {  // the usual case, which needs one address
      auto const* const groups = reinterpret_cast<four_scores const*>(keys.score + lead + begin);
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
      for (int r = Begin; r < End; ++r) scores.of[r] = groups[(r - Begin) * warp_size];
      return;
    }
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int r = Begin; r < End; ++r) scores.of[r] = load(first + place(block, r));
  }
  /// Calls visit(place, keys, whole) for the thread's groups of that tile. If `whole` is true, all entries of the group
  /// are in the run. Otherwise some may be no entries of the slice: their key is `below_all_keys`. Counts NaN.
  template <class Block, class Visit>
  KVPOLICY_HD void visit(Block& block, unsigned first, tile_scores const& scores, int& nan, Visit const& visit) const {
    unsigned left = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int r = 0; r < groups_of_thread; ++r) {
      unsigned const at = place(block, r);
      if (is_plain(scores.of[r], first + at)) {
        visit(at, keys_of(scores.of[r]), std::true_type{});
      } else {
        left |= 1u << r;
      }
    }
    while (left != 0) {  // few groups, of which each entry is asked: one copy of that code
      int const r = popcount(~left & (left - 1));
      left &= left - 1;
      unsigned const at = place(block, r);
      visit(at, asked(first + at, nan), std::false_type{});
    }
  }
  /// The keys of the group that begins at `first`.
  [[nodiscard]] KVPOLICY_HD four_keys group(unsigned first) const {
    four_scores const scores = load(first);
    int nan = 0;
    return is_plain(scores, first) ? keys_of(scores) : asked(first, nan);
  }

 private:
  [[nodiscard]] KVPOLICY_HD unsigned first_group() const {
    return 0u - static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(keys.score) / sizeof(float) % of_group);
  }
  /// True if all entries of a group are in the run, and none of these scores is NaN.
  [[nodiscard]] KVPOLICY_HD bool is_plain(four_scores const& scores, unsigned first) const {
    if (!knows_run<Rule>) return false;
    int const low = max_op{}(keys.begin, lowest());
    int const size = min_op{}(keys.end, upto) - low;
    float const* const of = scores.of;
    bool const numbers = ((of[0] <= of[1]) | (of[0] > of[1])) & ((of[2] <= of[3]) | (of[2] > of[3]));
    return numbers && size >= static_cast<int>(of_group) &&
           first - static_cast<unsigned>(low) <= static_cast<unsigned>(size) - of_group;
  }
  [[nodiscard]] KVPOLICY_HD static four_keys keys_of(four_scores const& scores) {
    four_keys made;
    for (int j = 0; j < four_keys::count; ++j) made.of[j] = number_key(scores.of[j]);
    return made;
  }
  [[nodiscard]] KVPOLICY_HD four_keys asked(unsigned first, int& nan) const {
    four_keys made;
    for (int j = 0; j < four_keys::count; ++j) {
      unsigned const e = first + static_cast<unsigned>(j) - static_cast<unsigned>(lowest());
      bool const there = e < static_cast<unsigned>(upto) - static_cast<unsigned>(lowest());
      made.of[j] = there ? keys.at(static_cast<int>(first) + j) : below_all_keys;
      nan += made.of[j] == nan_key ? 1 : 0;
    }
    return made;
  }
};

/// Calls visit(key) for each key of a slice, each on one thread.
template <class Block, class Rule, class Visit>
KVPOLICY_HD void for_each_key(Block& block, key_slice<Rule> const& slice, Visit const& visit) {
  int const each = select_storage::keys_of_tile(block.threads());
  for (int tile = 0; tile < slice.tiles(each); ++tile) {
    unsigned const first = slice.first_of(tile, each);
#if defined(__CUDA_ARCH__)
#pragma unroll 2
#endif
    for (int r = 0; r < groups_of_thread; ++r) {
      four_keys const keys = slice.group(first + slice.place(block, r));
      for (std::uint32_t const key : keys.of) {
        if (key != below_all_keys) visit(key);
      }
    }
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
