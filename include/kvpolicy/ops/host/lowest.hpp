// Finds the entry of a lane that argmin drops, in lanes that are in order and in others.
#pragma once

#include <algorithm>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/host/argmin_kernels.hpp>
#include <kvpolicy/ops/host/made_scores.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// The scores of a table: a source of scores for `lowest_entry`.
struct table_scores {
  score_view const& scores;
  static constexpr int at_once = std::numeric_limits<int>::max();  ///< entries that `of` is asked for

  [[nodiscard]] float const* of(int segment, lane_entries const&, int begin, int, float*) const {
    return scores.row(segment) + begin;
  }
};

/// The entries that compete: ordinals [begin, end) whose positions are in `among`.
struct competitors {
  int begin = 0;
  int end = 0;
  position_range among = all_positions;
};

/// The lowest position such that `count` entries have it or a higher one. 0 < count <= entries. At most `count` entries
/// have one of the `count` highest positions, so that the search goes down from there, and never too far.
inline int position_of_newest(argmin_kernels const& kernels, int const* position, int entries, int newest, int count) {
  int low = 0;
  int high = newest - count + 1;  // at most `count` entries are here or above
  for (int tries = 0; tries < 8; ++tries) {
    int const found = kernels.count_from(position, entries, high);
    if (found == count) return high;
    high -= count - found;
  }
  while (low < high) {  // the highest position that at least `count` entries reach
    int const middle = low + (high - low + 1) / 2;
    bool const enough = kernels.count_from(position, entries, middle) >= count;
    (enough ? low : high) = enough ? middle : middle - 1;
  }
  return low;
}

/// The competitors of a lane, of which those of the ranks `free` may be dropped.
inline competitors competitors_of(argmin_kernels const& kernels, lane_entries const& of, ordinal_range free) {
  lane_order const& order = of.order;
  if (order.ascends()) return {free.begin, free.end, all_positions};
  auto const position_of_rank = [&](int rank) {
    if (order.is_ring()) return of.position[order.ordinal_of(rank)];
    int const newest = order.newest_of(of.position, of.count);
    return position_of_newest(kernels, of.position, of.count, newest, of.count - rank);
  };
  position_range among = all_positions;
  if (free.end < of.count) among.high = position_of_rank(free.end);
  int const begin = std::min(free.begin, order.begin);
  if (free.begin > begin) among.low = position_of_rank(free.begin);
  return {begin, of.count, among};
}

/// The oldest of the competitors, by the ranks `free`.
inline int oldest_entry(argmin_kernels const& kernels, lane_entries const& of, ordinal_range free) {
  if (of.order.is_ring()) return of.order.ordinal_of(free.begin);
  competitors const there = competitors_of(kernels, of, free);
  int oldest = -1;
  for (int e = there.begin; e < there.end; ++e) {
    bool const competes = of.position[e] >= there.among.low && of.position[e] < there.among.high;
    if (competes && (oldest < 0 || of.position[e] < of.position[oldest])) oldest = e;
  }
  return oldest;
}

/// The competitor with the lowest score; of equal scores, the newest. NaN is below every number, and is counted.
template <class Source>
int lowest_entry(argmin_kernels const& kernels, Source const& source, int segment, lane_entries const& of,
                 competitors const& there, std::int64_t* nan) {
  alignas(64) float buffer[scores_at_once];
  bool const ascends = of.order.ascends();
  if constexpr (requires { Source::has_row; }) {
    if (there.begin < there.end && there.among.is_all() != Source::has_row) {
      int const index = source.lowest(of, there.begin, there.end - there.begin, there.among);
      if (index >= 0) return there.begin + index;
    }
  }
  int lowest = -1;
  float least = 0;
  for (int begin = there.begin, count = 0; begin < there.end; begin += count) {
    count = std::min(Source::at_once, there.end - begin);
    int const* const position = of.position + begin;
    float const* const scores = source.of(segment, of, begin, count, buffer);
    int const here = ascends ? kernels.last_lowest(scores, count, nan)
                             : kernels.lowest_of(scores, position, count, there.among, nan);
    if (here < 0) continue;
    float const score = scores[here];
    bool const newer = lowest < 0 || position[here] > of.position[lowest];
    bool const alike = score == least || (score != score && least != least);
    bool const before = lowest < 0 || (least == least && !(score > least));
    if (lowest < 0 || (alike ? newer : before)) {
      lowest = begin + here;
      least = score;
    }
  }
  return lowest;
}

}  // namespace KVPOLICY_NAMESPACE::detail
