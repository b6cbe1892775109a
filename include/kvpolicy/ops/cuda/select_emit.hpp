// Writes a keep set: the ordinals that each segment keeps, ascending, and the offsets of segments.
#pragma once

#include <kvpolicy/ops/cuda/select_threshold.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Where the key of an entry is: above the threshold (it is kept), at it (it is kept if ties are left), or below it.
enum class threshold_side : int { below, tied, above };

/// Classifies entries by the threshold of their segment.
template <class Rule>
struct by_threshold {
  segment_keys<Rule> const& keys;
  std::uint32_t threshold;
  [[nodiscard]] KVPOLICY_HD threshold_side operator()(int ordinal) const {
    std::uint32_t const key = keys.at(ordinal);
    return key > threshold ? threshold_side::above : key == threshold ? threshold_side::tied : threshold_side::below;
  }
};

/// Writes all ordinals below `count`.
template <class Block>
KVPOLICY_HD void emit_all(Block& block, int count, int* to) {
  for (int e = block.thread(); e < count; e += block.threads()) to[e] = e;
}

/// The sides of a warp's entries of a tile: one bit for each entry, one word for 32 neighbours.
struct warp_votes {
  static constexpr int rows = 8;
  static constexpr int entries = rows * warp_size;
  unsigned above[rows];
  unsigned tied[rows];
  unsigned sums = 0;  ///< the number of entries above in the low half, of ties in the high half
};

/// Classifies a warp's entries of a tile. `first` is the first entry of this thread, whose entries are 32 apart.
/// Collective for a warp.
template <class Block, class Classify>
[[nodiscard]] KVPOLICY_HD warp_votes take_votes(Block& block, Classify const& classify, std::int64_t first, int count) {
  warp_votes votes;
  threshold_side mine[warp_votes::rows];
  for (int j = 0; j < warp_votes::rows; ++j) {
    std::int64_t const e = first + j * warp_size;
    mine[j] = e < count ? classify(static_cast<int>(e)) : threshold_side::below;
  }
  for (int j = 0; j < warp_votes::rows; ++j) {
    votes.above[j] = block.ballot(mine[j] == threshold_side::above);
    votes.tied[j] = block.ballot(mine[j] == threshold_side::tied);
    votes.sums += static_cast<unsigned>(popcount(votes.above[j]) | popcount(votes.tied[j]) << 16);
  }
  return votes;
}

/// How many entries before a position are above the threshold, and how many are at it.
struct kept_before {
  int above;
  int tied;
};

/// Writes the ordinals that are kept of a warp's entries of a tile.
template <class Block>
KVPOLICY_HD void emit_votes(Block& block, warp_votes const& votes, std::int64_t first, kept_before here, int ties,
                            int* to) {
  unsigned const me = 1u << lane_id(block);
  for (int j = 0; j < warp_votes::rows; ++j) {
    int const kept = here.above + popcount(votes.above[j] & (me - 1u));
    int const rank = here.tied + popcount(votes.tied[j] & (me - 1u));
    bool const is_kept = (votes.above[j] & me) != 0 || ((votes.tied[j] & me) != 0 && rank < ties);
    if (is_kept) to[kept + (rank < ties ? rank : ties)] = static_cast<int>(first + j * warp_size);
    here.above += popcount(votes.above[j]);
    here.tied += popcount(votes.tied[j]);
  }
}

/// Writes, ascending, the ordinals below `count` whose entries are above the threshold, and the first `ties` of those
/// at it. Collective. `storage` is used after a barrier.
template <class Block, class Classify>
KVPOLICY_HD void emit_kept(Block& block, Classify const& classify, int count, int ties, int* to,
                           collective_storage* storage) {
  int const of_block = block.threads() / warp_size;
  kept_before before{0, 0};
  for (std::int64_t tile = 0; tile < count; tile += of_block * warp_votes::entries) {
    std::int64_t const first = tile + warp_id(block) * warp_votes::entries + lane_id(block);
    warp_votes const votes = take_votes(block, classify, first, count);
    block.sync();
    auto const sum = block.exclusive_sum(storage, lane_id(block) == 0 ? votes.sums : 0u);
    unsigned const here = block.shuffle(sum.before, 0);
    emit_votes(block, votes, first,
               {before.above + static_cast<int>(here & 0xFFFFu), before.tied + static_cast<int>(here >> 16)}, ties, to);
    before.above += static_cast<int>(sum.all & 0xFFFFu);
    before.tied += static_cast<int>(sum.all >> 16);
  }
}

/// Calls place(segment, before, number(segment)) for every segment, where `before` is the sum of the numbers of lower
/// segments. Every thread gets the sum of all. Each thread handles neighbouring segments, and calls `number` and
/// `place` for those only. Collective.
template <class Block, class Number, class Place>
KVPOLICY_HD std::int64_t place_segments(Block& block, int segments, collective_storage* storage, Number const& number,
                                        Place const& place) {
  int const each = (segments + block.threads() - 1) / block.threads();
  int const begin = block.thread() * each < segments ? block.thread() * each : segments;
  int const end = segments - begin < each ? segments : begin + each;
  std::int64_t sum = 0;
  for (int segment = begin; segment < end; ++segment) sum += number(segment);
  auto const [lower, all] = block.exclusive_sum(storage, sum);
  std::int64_t before = lower;
  for (int segment = begin; segment < end; ++segment) {
    std::int64_t const here = number(segment);
    place(segment, before, here);
    before += here;
  }
  return all;
}

/// The counts of a segment, packed into 64 bits. They are stored in the segment's element of `keep.indptr` until the
/// last block replaces them by the offset.
struct packed_result {
  std::int64_t word;

  /// `listed` is how many ordinals the segment lists, `aux` a second number with the meaning that a verb gives it.
  /// `unobserved` says that the segment triggered although nothing of it was observed.
  [[nodiscard]] KVPOLICY_HD static packed_result of(int listed, int aux, bool triggered, bool unobserved) {
    std::int64_t const packed = std::int64_t{triggered} << 62 | std::int64_t{aux} << 31 | std::int64_t{listed};
    return {unobserved ? ~packed : packed};
  }
  [[nodiscard]] KVPOLICY_HD int listed() const { return static_cast<int>(bits() & 0x7FFFFFFF); }
  [[nodiscard]] KVPOLICY_HD int aux_count() const { return static_cast<int>(bits() >> 31 & 0x7FFFFFFF); }
  [[nodiscard]] KVPOLICY_HD bool triggered() const { return (bits() >> 62) != 0; }
  [[nodiscard]] KVPOLICY_HD bool unobserved() const { return word < 0; }

 private:
  [[nodiscard]] KVPOLICY_HD std::int64_t bits() const { return word < 0 ? ~word : word; }
};

/// Adds to a count of a report, which any thread may.
template <class Block>
KVPOLICY_HD void add_to_report(Block& block, std::int64_t& count, std::int64_t more) {
  if (more != 0) block.atomic_add(reinterpret_cast<std::uint64_t*>(&count), static_cast<std::uint64_t>(more));
}

template <class Verb>
struct count_of_result {
  keep_set const& keep;
  Verb const& verb;
  [[nodiscard]] KVPOLICY_HD int operator()(int segment) const {
    return verb.number(packed_result{keep.indptr[segment + 1]});
  }
};

/// A segment, and how many ordinals the lower segments list.
struct segment_place {
  int segment;
  std::int64_t before;
};

template <class Verb>
struct place_result {
  keep_set const& keep;
  Verb const& verb;
  report& found;
  KVPOLICY_HD void operator()(int segment, std::int64_t before, std::int64_t number) const {
    packed_result const result{keep.indptr[segment + 1]};
    found.triggered += result.triggered() ? 1 : 0;
    found.unobserved += result.unobserved() ? 1 : 0;
    verb.place(result, {segment, before}, found);
    keep.indptr[segment + 1] = before + number;
  }
};

/// Turns the packed results of all segments into offsets, and writes the report. `verb.number(result)` is how many
/// ordinals a segment lists; `verb.place(result, {segment, before}, report)` does what else the verb needs. Collective;
/// called by the last block only.
template <class Block, class Verb>
KVPOLICY_HD void finalize_segments(Block& block, keep_set const& keep, collective_storage* storage, Verb const& verb) {
  if (block.thread() == 0) {
    keep.indptr[0] = 0;
    *keep.report = report{};
  }
  block.sync();
  report found{};
  place_segments(block, keep.segments(), storage, count_of_result<Verb>{keep, verb},
                 place_result<Verb>{keep, verb, found});
  add_to_report(block, keep.report->nan_scores, found.nan_scores);
  add_to_report(block, keep.report->forced_over_budget, found.forced_over_budget);
  add_to_report(block, keep.report->triggered, found.triggered);
  add_to_report(block, keep.report->unobserved, found.unobserved);
  add_to_report(block, keep.report->over_budget, found.over_budget);
}

}  // namespace KVPOLICY_NAMESPACE::detail
