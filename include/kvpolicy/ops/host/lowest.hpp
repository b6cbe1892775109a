// Finds the entry of a lane that argmin drops, in lanes that are in order and in others.
#pragma once

#include <algorithm>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/host/argmin_kernels.hpp>
#include <kvpolicy/ops/host/lowest_search.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int scores_at_once = 1024;

/// The scores of a table: a source of scores for `lowest_entry`.
struct table_scores {
  score_view const& scores;
  static constexpr int at_once = std::numeric_limits<int>::max();  ///< entries that `of` is asked for

  [[nodiscard]] float const* of(int segment, entry first, int, int const*, float*) const {
    return scores.row(segment) + first.ordinal;
  }
};

/// A function of an entry whose values are the elements of a row.
template <class Function>
concept reads_row = requires(Function const& f, lane one) {
  { f.row(one) } -> std::same_as<float const*>;
};

/// A function of entries that has a shorter form for one lane: `in_lane(lane, count)` returns it.
template <class Function>
concept has_lane_form = requires(Function const& f, lane one) { f.in_lane(one, 0); };

/// A lane form that reads the row `numbers()`, which is fetched early.
template <class Form>
concept reads_numbers = requires(Form const& form) {
  { form.numbers() } -> std::same_as<float const*>;
};

/// Writes the scores that a function gives to `count` entries from `first` on.
template <class Function>
[[gnu::always_inline]] inline void make_scores(Function const& f, entry const& first, int count, int const* position,
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

/// The lowest of the scores that a function gives to `count` entries, compared as they are made.
template <int Width, class Function>
[[gnu::always_inline]] inline int lowest_made(Function const& f, entry const& first, int count, int const* position,
                                              typename lowest_search<Width>::lowest_found& found) {
  using search = lowest_search<Width>;
  alignas(64) float made[std::size_t{search::block}];
  typename search::lowest_columns columns;
  columns.clear();
  entry from = first;
  int e = 0;
  for (; e + search::block <= count; e += search::block) {
    from.ordinal = first.ordinal + e;
    search::fetch(position + e);
    if constexpr (reads_numbers<Function>) search::fetch(f.numbers() + from.ordinal);
    make_scores(f, from, search::block, position + e, made);
    columns.template note<search::vectors>(made, e);
  }
  found = search::found_in(columns);
  int here = -1;
  if (e > 0) {
    from.ordinal = first.ordinal + found.block;
    make_scores(f, from, search::block, position + found.block, made);
    here = search::entry_in_block(found, made, search::block);
  }
  from.ordinal = first.ordinal + e;
  make_scores(f, from, count - e, position + e, made);
  return search::entry_of_rest(found, here, made, e, count);
}

#if defined(__x86_64__)
/// The same for AVX2 without its fused multiply-add, so that a function gives the same bits on every processor.
template <class Function>
KVPOLICY_VECTORIZED [[gnu::target("avx2")]] void make_scores_avx2(Function const& f, entry const& first, int count,
                                                                  int const* position, float* __restrict to) {
  make_scores(f, first, count, position, to);
}
template <class Function>
KVPOLICY_VECTORIZED [[gnu::target("avx2")]] int lowest_made_avx2(Function const& f, entry const& first, int count,
                                                                 int const* position,
                                                                 lowest_search<8>::lowest_found& found) {
  return lowest_made<8>(f, first, count, position, found);
}
#if defined(KVPOLICY_VECTORIZED_512)
template <class Function>
KVPOLICY_VECTORIZED_512 int lowest_made_avx512(Function const& f, entry const& first, int count, int const* position,
                                               lowest_search<16>::lowest_found& found) {
  return lowest_made<16>(f, first, count, position, found);
}
#endif
#endif

/// The scores that a function gives, which are not written to a table.
template <class Function>
struct made_scores {
  Function const& f;
  isa simd_level;
  static constexpr int at_once = reads_row<Function> ? std::numeric_limits<int>::max() : scores_at_once;

  [[nodiscard]] float const* of(int, entry const& first, int count, int const* position, float* buffer) const {
    if constexpr (reads_row<Function>) {
      return f.row(first.lane) + first.ordinal;
    } else if constexpr (has_lane_form<Function>) {
      make(f.in_lane(first.lane, first.count), first, count, position, buffer);
      return buffer;
    } else {
      make(f, first, count, position, buffer);
      return buffer;
    }
  }

  /// The index of the lowest of `count` scores, or -1 if several may be the lowest, or one NaN.
  [[nodiscard]] int lowest(entry const& first, int count, int const* position) const {
    if constexpr (has_lane_form<Function>) {
      return lowest_by(f.in_lane(first.lane, first.count), first, count, position);
    } else {
      return lowest_by(f, first, count, position);
    }
  }

 private:
  template <class Form>
  int lowest_by(Form const& form, entry const& first, int count, int const* position) const {
#if defined(__x86_64__)
#if defined(KVPOLICY_VECTORIZED_512)
    if (simd_level >= isa::avx512) {
      lowest_search<16>::lowest_found found;
      int const index = lowest_made_avx512(form, first, count, position, found);
      return found.many || found.maybe_nan ? -1 : index;
    }
#endif
    if (simd_level >= isa::avx2) {
      lowest_search<8>::lowest_found found;
      int const index = lowest_made_avx2(form, first, count, position, found);
      return found.many || found.maybe_nan ? -1 : index;
    }
#endif
    lowest_search<4>::lowest_found found;
    int const index = lowest_made<4>(form, first, count, position, found);
    return found.many || found.maybe_nan ? -1 : index;
  }

  template <class Form>
  void make(Form const& form, entry const& first, int count, int const* position, float* buffer) const {
#if defined(__x86_64__)
    if (simd_level >= isa::avx2) return make_scores_avx2(form, first, count, position, buffer);
#endif
    make_scores(form, first, count, position, buffer);
  }
};

/// The entries that compete: ordinals [begin, end) whose positions are in `among`.
struct competitors {
  int begin;
  int end;
  position_range among;
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
  constexpr position_range all{std::numeric_limits<int>::min(), std::numeric_limits<int>::max()};
  lane_order const& order = of.order;
  if (order.ascends()) return {free.begin, free.end, all};
  position_range among = all;
  int const newest = order.newest_of(of.position, of.count);
  if (free.end < of.count) {
    among.high = order.is_ring() ? of.position[order.ordinal_of(free.end)]
                                 : position_of_newest(kernels, of.position, of.count, newest, of.count - free.end);
  }
  int const begin = std::min(free.begin, order.begin);
  if (free.begin > begin) {
    among.low = order.is_ring() ? of.position[order.ordinal_of(free.begin)]
                                : position_of_newest(kernels, of.position, of.count, newest, of.count - free.begin);
  }
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
                 ordinal_range free, std::int64_t* nan) {
  alignas(64) float buffer[scores_at_once];
  competitors const there = competitors_of(kernels, of, free);
  bool const ascends = of.order.ascends();
  if constexpr (Source::at_once == scores_at_once) {
    if (there.among.is_all() && there.begin < there.end) {
      int const index = source.lowest(entry{of.lane, there.begin, of.count, 0, 0}, there.end - there.begin,
                                      of.position + there.begin);
      if (index >= 0) return there.begin + index;
    }
  }
  int lowest = -1;
  float least = 0;
  for (int begin = there.begin, count = 0; begin < there.end; begin += count) {
    count = std::min(Source::at_once, there.end - begin);
    int const* const position = of.position + begin;
    float const* const scores = source.of(segment, entry{of.lane, begin, of.count, 0, 0}, count, position, buffer);
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
