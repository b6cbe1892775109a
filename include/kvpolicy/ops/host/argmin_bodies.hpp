// The loops that find the lowest score of a row, for vectors of any width.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/host/vectors.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// Positions [low, high).
struct position_range {
  int low;
  int high;
};

template <int Width>
struct argmin_bodies {
  using floats = typename vector_of<Width>::floats;
  using ints = typename vector_of<Width>::ints;
  static constexpr int block = 2048;  ///< entries whose lowest score is found at once
  static constexpr float none = std::numeric_limits<float>::infinity();

  /// The lowest score, and where it may be.
  struct lowest_blocks {
    float score = none;
    int last = 0;       ///< the last block that has it
    bool many = false;  ///< other blocks have it, too
    bool has_nan = false;
  };

  /// The lowest of `count` scores; whether any is NaN.
  [[gnu::always_inline]] static inline float lowest_score(float const* scores, int count, bool* has_nan) {
    floats low[2];
    floats unordered;
    for (int i = 0; i < Width; ++i) low[0][i] = low[1][i] = unordered[i] = none;
    int e = 0;
    for (; e + 2 * Width <= count; e += 2 * Width) {
      floats a;
      floats b;
      get(a, scores + e);
      get(b, scores + e + Width);
      low[0] = a < low[0] ? a : low[0];
      low[1] = b < low[1] ? b : low[1];
      floats const both = a + b;  // NaN if one of them is; of two infinities, too, which the caller looks at
      unordered = both != both ? both : unordered;
    }
    float lowest = none;
    for (int i = 0; i < Width; ++i) {
      lowest = low[0][i] < lowest ? low[0][i] : lowest;
      lowest = low[1][i] < lowest ? low[1][i] : lowest;
      *has_nan = *has_nan || unordered[i] != unordered[i];
    }
    for (; e < count; ++e) {
      lowest = scores[e] < lowest ? scores[e] : lowest;
      *has_nan = *has_nan || scores[e] != scores[e];
    }
    return lowest;
  }

  [[gnu::always_inline]] static inline void note_block(lowest_blocks& found, float lowest, int begin) {
    if (!(lowest <= found.score)) return;
    found.many = lowest == found.score && begin > 0;
    found.score = lowest;
    found.last = begin;
  }

  /// Blocks are compared by their lowest scores, so that one block only is searched.
  [[gnu::always_inline]] static inline int last_lowest(float const* scores, int count, std::int64_t* nan) {
    lowest_blocks found;
    for (int begin = 0; begin < count; begin += block) {
      int const some = count - begin < block ? count - begin : block;
      note_block(found, lowest_score(scores + begin, some, &found.has_nan), begin);
    }
    if (found.has_nan) {
      int const last = last_nan(scores, count, nan);
      if (last >= 0) return last;
    }
    int const some = count - found.last < block ? count - found.last : block;
    bool many = false;
    return found.last + last_equal(scores + found.last, some, found.score, &many);
  }

  /// The index of the last score that is `value`, which there is. `many` is true if there are several.
  [[gnu::always_inline]] static inline int last_equal(float const* scores, int count, float value, bool* many) {
    ints index{};
    ints times{};
    ints now;
    for (int i = 0; i < Width; ++i) now[i] = i;
    int e = 0;
    for (; e + Width <= count; e += Width) {
      floats score;
      get(score, scores + e);
      index = score == value ? now : index;
      times -= score == value;
      now += Width;
    }
    int last = 0;
    int found = 0;
    for (int i = 0; i < Width; ++i) {
      last = index[i] > last ? index[i] : last;
      found += times[i];
    }
    for (; e < count; ++e) {
      if (scores[e] != value) continue;
      last = e;
      ++found;
    }
    *many = found > 1;
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
    constexpr position_range all{std::numeric_limits<int>::min(), std::numeric_limits<int>::max()};
    lowest_blocks found;
    for (int begin = 0; begin < count; begin += block) {
      int const some = count - begin < block ? count - begin : block;
      note_block(found, lowest_score(scores + begin, some, &found.has_nan), begin);
    }
    if (found.has_nan) {
      int const newest = newest_nan(scores, position, count, all, nan);
      if (newest >= 0) return newest;
    }
    int const some = count - found.last < block ? count - found.last : block;
    bool many = false;
    int const last = found.last + last_equal(scores + found.last, some, found.score, &many);
    return many || found.many ? newest_of(scores, position, count, all, found.score) : last;
  }

  /// The lowest score of the entries in a range of positions, block after block.
  [[gnu::always_inline]] static inline int lowest_of(float const* scores, int const* position, int count,
                                                     position_range among, std::int64_t* nan) {
    if (among.low <= 0 && among.high == std::numeric_limits<int>::max()) {
      return lowest_of_all(scores, position, count, nan);
    }
    lowest_blocks found;
    for (int begin = 0; begin < count; begin += block) {
      int const some = count - begin < block ? count - begin : block;
      note_block(found, lowest_in(scores + begin, position + begin, some, among, &found.has_nan), begin);
    }
    if (found.has_nan) return newest_nan(scores, position, count, among, nan);
    if (found.many) return newest_of(scores, position, count, among, found.score);
    int const some = count - found.last < block ? count - found.last : block;
    int const newest = newest_of(scores + found.last, position + found.last, some, among, found.score);
    return newest < 0 ? -1 : found.last + newest;
  }

  [[gnu::always_inline]] static inline float lowest_in(float const* scores, int const* position, int count,
                                                       position_range among, bool* has_nan) {
    floats nothing;
    for (int i = 0; i < Width; ++i) nothing[i] = none;
    floats low = nothing;
    floats unordered = nothing;
    int e = 0;
    for (; e + Width <= count; e += Width) {
      floats value;
      ints at;
      get(value, scores + e);
      get(at, position + e);
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
