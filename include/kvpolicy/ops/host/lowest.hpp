// SPDX-License-Identifier: Apache-2.0
// Finds the entry of a lane that argmin drops, in lanes that are in order and in others. Its scores are read from a
// table, or are computed meanwhile.
#pragma once

#include <algorithm>
#include <concepts>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/lowest.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int scores_at_once = 1024;

/// A function of an entry whose values are the elements of a row.
template <class Function>
concept reads_row = requires(Function const& f, lane one) {
  { f.row(one) } -> std::same_as<float const*>;
};

/// A function of entries that has a shorter form for one lane: `in_lane(lane_entries)` returns it.
template <class Function>
concept has_lane_form = requires(Function const& f, lane_entries const& of) { f.in_lane(of); };

/// Writes the scores that a function gives to `count` entries from `first` on.
template <class Function>
[[gnu::always_inline]] inline void compute_scores(Function const& f, entry const& first, int count, int const* position,
                                                  float* __restrict to) {
  constexpr int step = 16;  // a constant number of calls, which compilers turn into vectors
  Function const call = f;
  entry const begin = first;
  int const whole = count / step * step;
  for (int e = 0; e < whole; e += step) {
    int const* const at = position + e;
    float* const made = to + e;
    int const ordinal = begin.ordinal + e;
    for (int i = 0; i < step; ++i) made[i] = call(0.0f, entry{begin.lane, ordinal + i, begin.count, at[i], 0});
  }
  for (int e = whole; e < count; ++e)
    to[e] = call(0.0f, entry{begin.lane, begin.ordinal + e, begin.count, position[e], 0});
}

#if defined(__x86_64__)
/// The same for AVX2 without its fused multiply-add, so that a function gives the same bits on every processor.
template <class Function>
KVPOLICY_VECTORIZED [[gnu::target("avx2")]] void compute_scores_avx2(Function const& f, entry const& first, int count,
                                                                     int const* position, float* __restrict to) {
  compute_scores(f, first, count, position, to);
}
#endif

/// The scores that a function gives, which are not written to a table: a source of scores for `lowest_entry`.
template <class Function>
struct computed_scores {
  Function const& f;
  isa simd_level;
  static constexpr int at_once = reads_row<Function> ? std::numeric_limits<int>::max() : scores_at_once;

  /// The scores of `count` entries of a lane, from `begin` on. The buffer has room for them.
  [[nodiscard]] float const* of(int, lane_entries const& all, int begin, int count, float* buffer) const {
    if constexpr (reads_row<Function>) {
      return f.row(all.lane) + begin;
    } else {
      entry const first{all.lane, begin, all.count, 0, 0};
      if constexpr (has_lane_form<Function>) {
        compute(f.in_lane(all), first, count, all.position + begin, buffer);
      } else {
        compute(f, first, count, all.position + begin, buffer);
      }
      return buffer;
    }
  }

 private:
  template <class Form>
  void compute(Form const& form, entry const& first, int count, int const* position, float* buffer) const {
#if defined(__x86_64__)
    if (simd_level >= isa::avx2) return compute_scores_avx2(form, first, count, position, buffer);
#endif
    compute_scores(form, first, count, position, buffer);
  }
};

/// The scores of a table: a source of scores for `lowest_entry`.
struct table_scores {
  score_view const& scores;
  static constexpr int at_once = std::numeric_limits<int>::max();  ///< entries that `of` is asked for

  [[nodiscard]] float const* of(int segment, lane_entries const&, int begin, int, float*) const {
    return scores.row(segment) + begin;
  }
};

/// The entries that may be dropped: ordinals [begin, end) whose positions are in a range.
struct candidate_entries {
  int begin = 0;
  int end = 0;
  position_range positions = all_positions;
};

/// The lowest position such that `count` entries have it or a higher one. 0 < count <= entries. At most `count` entries
/// have one of the `count` highest positions, so that the search goes down from there, and never too far.
inline int position_of_newest(lowest_kernels const& kernels, int const* position, int entries, int newest, int count) {
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

/// The candidates of a lane whose entries of the ranks `droppable` may be dropped.
inline candidate_entries candidates_of(lowest_kernels const& kernels, lane_entries const& of, ordinal_range droppable) {
  lane_order const& order = of.order;
  if (order.ascends()) return {droppable.begin, droppable.end, all_positions};
  auto const position_of_rank = [&](int rank) {
    if (order.is_ring()) return of.position[order.ordinal_of(rank)];
    int const newest = order.newest_of(of.position, of.count);
    return position_of_newest(kernels, of.position, of.count, newest, of.count - rank);
  };
  position_range positions = all_positions;
  if (droppable.end < of.count) positions.high = position_of_rank(droppable.end);
  int const begin = std::min(droppable.begin, order.begin);
  if (droppable.begin > begin) positions.low = position_of_rank(droppable.begin);
  return {begin, of.count, positions};
}

/// The oldest entry of these ranks.
inline int oldest_entry(lowest_kernels const& kernels, lane_entries const& of, ordinal_range droppable) {
  if (of.order.is_ring()) return of.order.ordinal_of(droppable.begin);
  candidate_entries const candidates = candidates_of(kernels, of, droppable);
  int oldest = -1;
  for (int e = candidates.begin; e < candidates.end; ++e) {
    bool const competes = of.position[e] >= candidates.positions.low && of.position[e] < candidates.positions.high;
    if (competes && (oldest < 0 || of.position[e] < of.position[oldest])) oldest = e;
  }
  return oldest;
}

/// The candidate with the lowest score; of equal scores, the newest. NaN is below every number, and is counted.
template <class Source>
int lowest_entry(lowest_kernels const& kernels, Source const& source, int segment, lane_entries const& of,
                 candidate_entries const& candidates, std::int64_t* nan) {
  alignas(64) float buffer[scores_at_once];
  bool const ascends = of.order.ascends();
  int lowest = -1;
  float least = 0;
  for (int begin = candidates.begin, count = 0; begin < candidates.end; begin += count) {
    count = std::min(Source::at_once, candidates.end - begin);
    int const* const position = of.position + begin;
    float const* const scores = source.of(segment, of, begin, count, buffer);
    int const here = ascends ? kernels.last_lowest(scores, count, nan)
                             : kernels.lowest_of(scores, position, count, candidates.positions, nan);
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
