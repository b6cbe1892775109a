// The loops that find the lowest score of a row, for vectors of any width.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/host/lowest_search.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// Positions [low, high).
struct position_range {
  int low;
  int high;

  /// True if every position is in it.
  [[nodiscard]] constexpr bool is_all() const { return low <= 0 && high == std::numeric_limits<int>::max(); }
};
inline constexpr position_range all_positions{std::numeric_limits<int>::min(), std::numeric_limits<int>::max()};

template <int Width>
struct argmin_bodies {
  using floats = typename vector_of<Width>::floats;
  using ints = typename vector_of<Width>::ints;
  using search = lowest_search<Width>;
  static constexpr float none = search::none;

  /// The index of the lowest score; of equal scores, the last one.
  [[gnu::always_inline]] static inline int last_lowest(float const* scores, int count, std::int64_t* nan) {
    typename search::lowest_found found;
    int const entry = search::lowest_entry(scores, count, found);
    if (found.maybe_nan) {
      int const last = last_nan(scores, count, nan);
      if (last >= 0) return last;
    }
    return found.many ? last_equal(scores, count, found.score) : entry;
  }

  /// The index of the last score that is `value`, which there is.
  [[gnu::always_inline]] static inline int last_equal(float const* scores, int count, float value) {
    ints index{};
    ints now;
    for (int i = 0; i < Width; ++i) now[i] = i;
    int e = 0;
    for (; e + Width <= count; e += Width) {
      floats score;
      get(score, scores + e);
      index = score == value ? now : index;
      now += Width;
    }
    int last = 0;
    for (int i = 0; i < Width; ++i) last = index[i] > last ? index[i] : last;
    for (; e < count; ++e) last = scores[e] == value ? e : last;
    return last;
  }

  /// The index of the last NaN, or -1. Counts them all.
  static int last_nan(float const* scores, int count, std::int64_t* nan) {
    int last = -1;
    for (int e = 0; e < count; ++e) {
      if (scores[e] == scores[e]) continue;
      last = e;
      ++*nan;
    }
    return last;
  }

  /// The newest of the entries with the lowest score, where all compete. Positions are read only if there are several.
  [[gnu::always_inline]] static inline int lowest_of_all(float const* scores, int const* position, int count,
                                                         std::int64_t* nan) {
    typename search::lowest_found found;
    int const entry = search::lowest_entry(scores, count, found);
    if (found.maybe_nan) {
      int const newest = newest_nan(scores, position, count, all_positions, nan);
      if (newest >= 0) return newest;
    }
    return found.many ? newest_of(scores, position, count, all_positions, found.score) : entry;
  }

  /// The lowest score of the entries in a range of positions, block after block.
  [[gnu::always_inline]] static inline int lowest_of(float const* scores, int const* position, int count,
                                                     position_range among, std::int64_t* nan) {
    if (among.is_all()) return lowest_of_all(scores, position, count, nan);
    constexpr int part = 2048;  // one of them is searched for the entry
    float score = none;
    int last = 0;
    bool many = false;
    bool has_nan = false;
    for (int begin = 0; begin < count; begin += part) {
      int const some = count - begin < part ? count - begin : part;
      float const here = lowest_in(scores + begin, position + begin, some, among, &has_nan);
      if (!(here <= score)) continue;
      many = here == score && begin > 0;
      score = here;
      last = begin;
    }
    if (has_nan) return newest_nan(scores, position, count, among, nan);
    if (many) return newest_of(scores, position, count, among, score);
    int const some = count - last < part ? count - last : part;
    int const newest = newest_of(scores + last, position + last, some, among, score);
    return newest < 0 ? -1 : last + newest;
  }

  [[gnu::always_inline]] static inline float lowest_in(float const* scores, int const* position, int count,
                                                       position_range among, bool* has_nan) {
    floats const nothing = floats{} + none;
    floats low = nothing;
    floats unordered = nothing;
    int e = 0;
    for (; e + Width <= count; e += Width) {
      floats value;
      ints at;
      get_once(value, scores + e);
      get_once(at, position + e);
      value = at < among.low ? nothing : value;
      value = at >= among.high ? nothing : value;
      low = value < low ? value : low;
      unordered = value != value ? value : unordered;
    }
    float lowest = none;
    for (int i = 0; i < Width; ++i) {
      lowest = low[i] < lowest ? low[i] : lowest;
      *has_nan = *has_nan || unordered[i] != unordered[i];
    }
    for (; e < count; ++e) {
      if (position[e] < among.low || position[e] >= among.high) continue;
      *has_nan = *has_nan || scores[e] != scores[e];
      lowest = scores[e] < lowest ? scores[e] : lowest;
    }
    return lowest;
  }

  /// The index of the highest position in the range whose score is NaN. Counts them all.
  static int newest_nan(float const* scores, int const* position, int count, position_range among, std::int64_t* nan) {
    int found = -1;
    for (int e = 0; e < count; ++e) {
      if (position[e] < among.low || position[e] >= among.high || scores[e] == scores[e]) continue;
      ++*nan;
      if (found < 0 || position[e] > position[found]) found = e;
    }
    return found;
  }

  /// The index of the highest position in the range whose score is `value`; -1 if there is none.
  [[gnu::always_inline]] static inline int newest_of(float const* scores, int const* position, int count,
                                                     position_range among, float value) {
    ints const absent = ints{} - 1;
    ints newest = absent;
    ints index = absent;
    ints now;
    for (int i = 0; i < Width; ++i) now[i] = i;
    int e = 0;
    for (; e + Width <= count; e += Width) {
      floats score;
      ints at;
      get(score, scores + e);
      get(at, position + e);
      at = score == value ? at : absent;
      at = at < among.low ? absent : at;
      at = at >= among.high ? absent : at;
      index = at > newest ? now : index;
      newest = at > newest ? at : newest;
      now += Width;
    }
    int found = -1;
    for (int i = 0; i < Width; ++i) {
      if (index[i] >= 0 && (found < 0 || newest[i] > position[found])) found = index[i];
    }
    for (; e < count; ++e) {
      bool const inside = position[e] >= among.low && position[e] < among.high;
      if (inside && scores[e] == value && (found < 0 || position[e] > position[found])) found = e;
    }
    return found;
  }

  [[gnu::always_inline]] static inline int count_from(int const* position, int count, int limit) {
    ints sums{};
    int e = 0;
    for (; e + Width <= count; e += Width) {
      ints at;
      get(at, position + e);
      sums -= at >= limit;
    }
    int found = 0;
    for (int i = 0; i < Width; ++i) found += sums[i];
    for (; e < count; ++e) found += position[e] >= limit ? 1 : 0;
    return found;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
