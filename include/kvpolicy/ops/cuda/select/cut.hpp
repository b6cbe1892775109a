// SPDX-License-Identifier: Apache-2.0
// The cut of a segment, which says of every entry alone whether it is kept, and the list of the kept ones.
#pragma once

#include <kvpolicy/ops/cuda/select/threshold.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The scores whose keys are not below a level, as two ranges of bits: of positive scores and of negative ones. Bits
/// are compared with fewer instructions than keys.
struct score_ranges {
  std::uint32_t first;     ///< of the range of positive scores,
  std::uint32_t count;     ///< and how many numbers it has
  std::uint32_t negative;  ///< how many numbers the other range has, which begins at -0

  [[nodiscard]] KVPOLICY_HD static score_ranges from(std::uint32_t level) {
    constexpr std::uint32_t sign = 0x80000000u;  // also the key of 0
    constexpr std::uint32_t infinity = 0x7F800000u;
    if (level <= nan_key) return {0, sign, sign};
    if (level > sign) {
      std::uint32_t const first = level - sign;
      return {first, first <= infinity ? infinity - first + 1 : 0, 0};
    }
    std::uint32_t const lowest = sign - 1 - level;  // the highest magnitude whose key is not below `level`
    if (level >= sign - 1) return {0, infinity + 1, 1};
    return {0, infinity + 1, (lowest < infinity ? lowest : infinity) + 1};
  }
  [[nodiscard]] KVPOLICY_HD bool have(float score) const {
    auto const bits = same_bits<std::uint32_t>(score);
    return (bits - first < count) | (bits - 0x80000000u < negative);
  }
};

/// What a segment keeps: its entries with a higher key, and those with this key up to an ordinal.
struct key_cut {
  std::uint32_t key;
  int last_tie;
};

/// The ordinal of the last of the ties that a threshold keeps: of the entries in [begin, end) with its key, the first
/// `ties` are kept. Where all are, no entry is read. Each pass counts the ties in as many pieces as there are groups of
/// eight threads, and goes on in the piece that holds the last. Collective. It uses `temp_storage` after a barrier.
template <class Block, class Keys>
[[nodiscard]] KVPOLICY_HD int last_tie(Block& block, Keys const& keys, key_threshold const& threshold,
                                       select_storage const& temp_storage) {
  constexpr int together = 8;  // 32 bytes of scores, a sector of memory
  if (threshold.ties == all_ties) return all_ties;
  if (threshold.ties <= 0) return -1;
  int begin = keys.begin;
  int end = keys.end;
  int left = threshold.ties;
  int const pieces = block.threads() / together;
  while (end - begin > block.threads()) {
    int const each = (end - begin + pieces - 1) / pieces;
    std::int64_t const first = begin + std::int64_t{block.thread() / together} * each;
    std::int64_t const stop = first + each < end ? first + each : end;
    int ties = 0;
    for (std::int64_t e = first + block.thread() % together; e < stop; e += together) {
      ties += keys.at(static_cast<int>(e)) == threshold.key ? 1 : 0;
    }
    ties = block.template reduce_warp<together>(ties, plus_op{});
    bool const speaks = block.thread() % together == 0;
    block.sync();
    int const before = block.exclusive_sum(temp_storage.collective, speaks ? ties : 0).before;
    if (speaks && before < left && left <= before + ties) {
      temp_storage.words[0] = static_cast<int>(first);
      temp_storage.words[1] = static_cast<int>(stop);
      temp_storage.words[2] = left - before;
    }
    block.sync();
    begin = temp_storage.words[0];
    end = temp_storage.words[1];
    left = temp_storage.words[2];
  }
  int const mine = begin + block.thread();
  bool const is_tie = mine < end && keys.at(mine) == threshold.key;
  block.sync();
  int const before = block.rank(temp_storage.collective, is_tie).before;
  if (is_tie && before == left - 1) temp_storage.words[3] = mine;
  block.sync();
  return temp_storage.words[3];
}

/// The cut of a threshold. Collective, as last_tie.
template <class Block, class Keys>
[[nodiscard]] KVPOLICY_HD key_cut cut_at(Block& block, Keys const& keys, key_threshold const& threshold,
                                         select_storage const& temp_storage) {
  return {threshold.key, last_tie(block, keys, threshold, temp_storage)};
}

/// Writes all ordinals below `count`, from `first` on, each at its own place behind `to`.
template <class Block>
KVPOLICY_HD void emit_all(Block& block, int count, int* to, int first = 0) {
  for (int e = first + block.thread(); e < count; e += block.threads()) to[e] = e;
}

/// Which entries of a segment a cut keeps, by groups of four: one bit for each.
template <class Rule>
class kept_by_cut {
 public:
  /// Groups that will be asked about are among `count` entries from `first` on.
  KVPOLICY_HD kept_by_cut(segment_keys<Rule> const& keys, entry_cut const& cut, unsigned first, unsigned count)
      : keys_(keys), cut_(cut) {
    int const last_tie = cut.last_tie;
    singly_ = !knows_run<Rule> || static_cast<unsigned>(last_tie) - first < count;
    ranges_ = score_ranges::from(cut.key + (static_cast<int>(first) > last_tie ? 1u : 0u));
  }
  /// The bits of the group that begins at `first`. `inner` says that all its entries are in the run; then it has these
  /// scores.
  [[nodiscard]] KVPOLICY_HD unsigned operator()(four_scores const& scores, unsigned first, bool inner) const {
    if (singly_ || !inner) return each(first);
    unsigned bits = 0;
    for (int j = 0; j < four_scores::count; ++j) bits |= ranges_.have(scores.of[j]) ? 1u << j : 0u;
    return bits;
  }

 private:
  [[nodiscard]] KVPOLICY_HD unsigned each(unsigned first) const {
    unsigned bits = 0;
    for (unsigned bit = 1; bit < 1u << four_scores::count; bit *= 2) {
      if (first < static_cast<unsigned>(cut_.upto) && keeps(static_cast<int>(first))) bits |= bit;
      ++first;
    }
    return bits;
  }
  [[nodiscard]] KVPOLICY_HD bool keeps(int ordinal) const {
    bool const competes = cut_.begin <= ordinal && ordinal < cut_.end && (knows_run<Rule> || !keys_.is_forced(ordinal));
    std::uint32_t const key = competes ? radix_key(keys_.score[ordinal]) : forced_key;
    return key > cut_.key || (key == cut_.key && ordinal <= cut_.last_tie);
  }

  segment_keys<Rule> const& keys_;
  entry_cut const& cut_;
  score_ranges ranges_{};
  bool singly_ = true;
};

/// Each thread of a warp has bits of groups of four entries, the g-th of which begins at 4 (lane + 32 g). Returns the
/// bits of the sixteen neighbours from 16 lane on. Collective for a warp.
template <class Block>
[[nodiscard]] KVPOLICY_HD unsigned bits_of_neighbours(Block& block, unsigned of_groups) {
  constexpr int of_group = four_scores::count;
  int const first = lane_id(block) % 8 * of_group;
  int const group = lane_id(block) / 8;
  unsigned bits = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll 1  // else each index would stay in a register of its own
#endif
  for (int i = 0; i < of_group; ++i) {
    unsigned const of_lane = block.shuffle(of_groups, first + i);
    bits |= (of_lane >> (group * of_group) & 15u) << (i * of_group);
  }
  return bits;
}

/// Writes, ascending, the ordinals of the entries of a segment's slice that a cut keeps. In a tile each warp has 512
/// neighbours, which it loads as four groups of four for each thread. Collective. It uses `temp_storage` after a
/// barrier.
template <class Block, class Rule>
KVPOLICY_HD void emit_kept(Block& block, segment_keys<Rule> const& keys, key_cut const& cut, int* to,
                           select_storage const& temp_storage) {
  constexpr unsigned groups = 4;
  constexpr unsigned of_group = four_scores::count;
  constexpr unsigned of_thread = groups * of_group;
  unsigned const of_tile = static_cast<unsigned>(block.threads()) * of_thread;
  unsigned const inner = keys.first_inner();
  unsigned const inner_entries = keys.inner_groups() * of_group;
  entry_cut* const of_entries = temp_storage.cut();
  block.sync();
  if (block.thread() == 0) *of_entries = {keys.begin, keys.end, keys.upto, cut.key, cut.last_tie};
  block.sync();
  unsigned left = static_cast<unsigned>(keys.upto) - keys.from;
  for (unsigned first = keys.from; left > 0; first += of_tile, left -= min_op{}(left, of_tile)) {
    auto const lane = static_cast<unsigned>(lane_id(block));
    unsigned const of_warp = first + (static_cast<unsigned>(block.thread()) - lane) * of_thread;
    kept_by_cut<Rule> const kept(keys, *of_entries, first, of_tile);
    unsigned bits = 0;
    for (unsigned g = 0; g < groups; g += 2) {  // two loads are issued together
      unsigned const low = of_warp + (g * warp_size + lane) * of_group;
      unsigned const high = low + warp_size * of_group;
      bool const low_inner = low - inner < inner_entries;
      bool const high_inner = high - inner < inner_entries;
      four_scores low_scores{}, high_scores{};
      if (inner_entries > 0) {  // loads under a condition of its own would wait for one another
        low_scores = keys.load(low_inner ? low : inner);
        high_scores = keys.load(high_inner ? high : inner);
      }
      bits |= kept(low_scores, low, low_inner) << (g * of_group);
      bits |= kept(high_scores, high, high_inner) << ((g + 1) * of_group);
    }
    bits = bits_of_neighbours(block, bits);
    block.sync();
    auto const sum = block.exclusive_sum(temp_storage.collective, popcount(bits));
    int* place = to + sum.before;
    unsigned const mine = of_warp + static_cast<unsigned>(lane_id(block)) * of_thread;
    for (; bits != 0; bits &= bits - 1) *place++ = static_cast<int>(mine) + popcount(~bits & (bits - 1));
    to += sum.all;
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
