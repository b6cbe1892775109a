// Ordinals into a keep set: where each segment's begin, and which they are, ascending.
#pragma once

#include <kvpolicy/ops/cuda/select_cut.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// What becomes of an entry: it is kept, it is kept if ties are left, it is not.
enum class standing : int { below, tied, above };

template <class Rule>
struct by_cut {
  segment_keys<Rule> const& keys;
  std::uint32_t lowest;
  [[nodiscard]] KVPOLICY_HD standing operator()(int ordinal) const {
    std::uint32_t const key = keys.at(ordinal);
    return key > lowest ? standing::above : key == lowest ? standing::tied : standing::below;
  }
};

/// Lists all ordinals below `count`.
template <class Block>
KVPOLICY_HD void emit_all(Block& block, int count, int* to) {
  for (int e = block.thread(); e < count; e += block.threads()) to[e] = e;
}

/// How the entries of a warp's part of a tile stand: a bit each, a word for 32 neighbours.
struct warp_votes {
  static constexpr int rows = 8;
  static constexpr int entries = rows * warp_size;
  unsigned above[rows];
  unsigned tied[rows];
  unsigned sums = 0;  ///< those above in the low half, those tied in the other
};

/// Collective for a warp; `first`: of this thread's entries, which are 32 apart.
template <class Block, class Stands>
[[nodiscard]] KVPOLICY_HD warp_votes take_votes(Block& block, Stands const& stands, std::int64_t first, int count) {
  warp_votes votes;
  standing mine[warp_votes::rows];
  for (int j = 0; j < warp_votes::rows; ++j) {
    std::int64_t const e = first + j * warp_size;
    mine[j] = e < count ? stands(static_cast<int>(e)) : standing::below;
  }
  for (int j = 0; j < warp_votes::rows; ++j) {
    votes.above[j] = block.ballot(mine[j] == standing::above);
    votes.tied[j] = block.ballot(mine[j] == standing::tied);
    votes.sums += static_cast<unsigned>(bits_in(votes.above[j]) | bits_in(votes.tied[j]) << 16);
  }
  return votes;
}

/// What comes before some entries: so many are above, so many are tied.
struct kept_before {
  int above;
  int tied;
};

/// Lists what is kept of a warp's part of a tile.
template <class Block>
KVPOLICY_HD void emit_votes(Block& block, warp_votes const& votes, std::int64_t first, kept_before here, int ties,
                            int* to) {
  unsigned const me = 1u << lane_id(block);
  for (int j = 0; j < warp_votes::rows; ++j) {
    int const kept = here.above + bits_in(votes.above[j] & (me - 1u));
    int const rank = here.tied + bits_in(votes.tied[j] & (me - 1u));
    bool const is_kept = (votes.above[j] & me) != 0 || ((votes.tied[j] & me) != 0 && rank < ties);
    if (is_kept) to[kept + (rank < ties ? rank : ties)] = static_cast<int>(first + j * warp_size);
    here.above += bits_in(votes.above[j]);
    here.tied += bits_in(votes.tied[j]);
  }
}

/// Lists in ascending order the ordinals below `count` that are above, and the first `ties` of those that are tied.
/// Collective; `warps`: 2 warp_size of shared memory, for tiles by turns.
template <class Block, class Stands>
KVPOLICY_HD void emit_kept(Block& block, Stands const& stands, int count, int ties, int* to, unsigned* warps) {
  int const of_block = block.threads() / warp_size;
  kept_before before{0, 0};
  bool odd = false;
  for (std::int64_t tile = 0; tile < count; tile += of_block * warp_votes::entries, odd = !odd) {
    std::int64_t const first = tile + warp_id(block) * warp_votes::entries + lane_id(block);
    warp_votes const votes = take_votes(block, stands, first, count);
    unsigned* const sums = warps + (odd ? warp_size : 0);
    if (lane_id(block) == 0) sums[warp_id(block)] = votes.sums;
    block.sync();
    unsigned const of_warp = lane_id(block) < of_block ? sums[lane_id(block)] : 0;
    unsigned const lower = warp_sum_before(block, of_warp);
    unsigned const all = block.shuffle(lower + of_warp, warp_size - 1);
    unsigned const here = block.shuffle(lower, warp_id(block));
    emit_votes(block, votes, first,
               {before.above + static_cast<int>(here & 0xFFFFu), before.tied + static_cast<int>(here >> 16)}, ties, to);
    before.above += static_cast<int>(all & 0xFFFFu);
    before.tied += static_cast<int>(all >> 16);
  }
}

/// place(segment, before, number(segment)) for every segment, `before` the sum of the numbers of lower segments; in
/// every thread the sum of all. A thread takes neighbours, and asks and places only those. Collective.
template <class Block, class Number, class Place>
KVPOLICY_HD std::int64_t place_segments(Block& block, int segments, std::int64_t* temp_storage, Number const& number,
                                        Place const& place) {
  int const each = (segments + block.threads() - 1) / block.threads();
  int const begin = block.thread() * each < segments ? block.thread() * each : segments;
  int const end = segments - begin < each ? segments : begin + each;
  std::int64_t sum = 0;
  for (int segment = begin; segment < end; ++segment) sum += number(segment);
  auto const [lower, all] = block_sum_before(block, sum, temp_storage);
  std::int64_t before = lower;
  for (int segment = begin; segment < end; ++segment) {
    std::int64_t const here = number(segment);
    place(segment, before, here);
    before += here;
  }
  return all;
}

/// What a block found of a segment, until the last block makes offsets and a report of it: it waits where the offset
/// will be.
struct packed_result {
  std::int64_t word;

  /// `unobserved`: it triggered although nothing was observed of it.
  [[nodiscard]] KVPOLICY_HD static packed_result of(int listed, int odd, bool triggered, bool unobserved) {
    std::int64_t const said = std::int64_t{triggered} << 62 | std::int64_t{odd} << 31 | std::int64_t{listed};
    return {unobserved ? ~said : said};
  }
  [[nodiscard]] KVPOLICY_HD int listed() const { return static_cast<int>(said() & 0x7FFFFFFF); }
  [[nodiscard]] KVPOLICY_HD int aux_count() const { return static_cast<int>(said() >> 31 & 0x7FFFFFFF); }
  [[nodiscard]] KVPOLICY_HD bool triggered() const { return (said() >> 62) != 0; }
  [[nodiscard]] KVPOLICY_HD bool unobserved() const { return word < 0; }

 private:
  [[nodiscard]] KVPOLICY_HD std::int64_t said() const { return word < 0 ? ~word : word; }
};

/// Adds to a count of a report.
template <class Block>
KVPOLICY_HD void add_to_report(Block& block, std::int64_t& count, std::int64_t more) {
  if (more != 0) block.atomic_add(reinterpret_cast<std::uint64_t*>(&count), static_cast<std::uint64_t>(more));
}

template <class Verb>
struct number_of_word {
  keep_set const& keep;
  Verb const& verb;
  [[nodiscard]] KVPOLICY_HD int operator()(int segment) const {
    return verb.number(packed_result{keep.indptr[segment + 1]});
  }
};

/// A segment, and how many ordinals lower ones list.
struct segment_place {
  int segment;
  std::int64_t before;
};

template <class Verb>
struct place_word {
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

/// Makes offsets of the words of all segments, and a report. `verb.number(word)`: how many ordinals a segment lists;
/// `verb.place(word, {segment, before}, found)`: whatever else there is to do. Collective, in the last block alone.
template <class Block, class Verb>
KVPOLICY_HD void close_segments(Block& block, keep_set const& keep, std::int64_t* temp_storage, Verb const& verb) {
  if (block.thread() == 0) {
    keep.indptr[0] = 0;
    *keep.report = report{};
  }
  block.sync();
  report found{};
  place_segments(block, keep.segments(), temp_storage, number_of_word<Verb>{keep, verb},
                 place_word<Verb>{keep, verb, found});
  add_to_report(block, keep.report->nan_scores, found.nan_scores);
  add_to_report(block, keep.report->forced_over_budget, found.forced_over_budget);
  add_to_report(block, keep.report->triggered, found.triggered);
  add_to_report(block, keep.report->unobserved, found.unobserved);
  add_to_report(block, keep.report->over_budget, found.over_budget);
}

}  // namespace KVPOLICY_NAMESPACE::detail
