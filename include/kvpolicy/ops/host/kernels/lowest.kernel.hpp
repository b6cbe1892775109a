// SPDX-License-Identifier: Apache-2.0
// The lowest score of a row: kernels/lowest.hpp says what the kernels promise.

/// The scores of all entries.
struct every_score {
  float const* scores;

  KVPOLICY_OP floats read(int e) const { return load_into_register(scores + e); }
  KVPOLICY_OP float at(int e) const { return scores[e]; }
  KVPOLICY_OP void prefetch(int e) const { __builtin_prefetch(scores + e, 0, 3); }
};

/// The scores of entries whose positions are in a range, and infinity for the others.
struct scores_inside {
  float const* scores;
  int const* position;
  position_range positions;

  KVPOLICY_OP floats read(int e) const {
    ints const at = load(position + e);
    mask const outside = (splat(positions.low) > at) | !(splat(positions.high) > at);
    return choose(outside, splat(__builtin_inff()), load_into_register(scores + e));
  }
  KVPOLICY_OP float at(int e) const { return positions.has(position[e]) ? scores[e] : __builtin_inff(); }
  KVPOLICY_OP void prefetch(int e) const {
    __builtin_prefetch(scores + e, 0, 3);
    __builtin_prefetch(position + e, 0, 3);
  }
};

/// The lowest score, and its last entry.
struct lowest_score {
  float score;
  int entry;  ///< -1 if there is none
  bool many;  ///< other entries may have this score, too
  bool nan;   ///< a score is NaN
};

/// The lowest of each column of `Vectors` vectors from entry e on: entry e + i is in column i mod `width`.
template <int Vectors, class Scores>
KVPOLICY_OP floats lowest_of_columns(Scores const& scores, int e, mask& nan) {
  if constexpr (Vectors == 1) {
    floats const some = scores.read(e);
    nan = nan | either_is_nan(some, some);
    return some;
  } else if constexpr (Vectors == 2) {
    floats const some = scores.read(e), more = scores.read(e + width);
    nan = nan | either_is_nan(some, more);
    return min_or_second(some, more);
  } else {
    floats const some = lowest_of_columns<Vectors / 2>(scores, e, nan);
    return min_or_second(some, lowest_of_columns<Vectors / 2>(scores, e + Vectors / 2 * width, nan));
  }
}

/// The same of fewer entries than a vector has.
template <class Scores>
KVPOLICY_OP lowest_score lowest_of_few(Scores const& scores, int count) {
  lowest_score found{__builtin_inff(), -1, false, false};
  for (int e = 0; e < count; ++e) {
    float const score = scores.at(e);
    found.nan = found.nan || score != score;
    if (score <= found.score) found = {score, e, score == found.score && found.entry >= 0, found.nan};
  }
  return found;
}

/// Goes through blocks of entries and keeps the lowest score of each column, and the first and the last block that has
/// it. The last entry with the lowest score is then in one of few places. Blocks begin at cache lines, because a vector
/// that lies in two of them is read twice; vectors before the first block and after the last one are blocks, too, and
/// may have entries of their neighbours.
template <class Scores>
KVPOLICY_OP lowest_score lowest_in(Scores const& scores, int count) {
  constexpr int vectors = 16, block = vectors * width;
  constexpr int ahead = 1024;  // entries: after a short row the row of the next lane begins
  if (count < width) return lowest_of_few(scores, count);
  floats low = splat(__builtin_inff());
  ints first = splat(0), last = first;
  mask nan = either_is_nan(low, low);
  auto const note = [&](floats here, int e) KVPOLICY_INLINED {
    ints const now = splat(e);
    first = choose(here < low, now, first);
    last = choose(here <= low, now, last);
    low = min_or_second(here, low);
  };
  int e = static_cast<int>((0 - reinterpret_cast<std::uintptr_t>(scores.scores) / sizeof(float)) % width);
  if (e > 0) note(lowest_of_columns<1>(scores, 0, nan), 0);
  for (; e + block <= count; e += block) {
    for (int i = 0; i < block; i += 16) scores.prefetch(e + ahead + i);
    note(lowest_of_columns<vectors>(scores, e, nan), e);
  }
  for (; e + width <= count; e += width) note(lowest_of_columns<1>(scores, e, nan), e);
  if (e < count) note(lowest_of_columns<1>(scores, count - width, nan), count - width);

  int begin[width], end[width];
  store(first, begin);
  store(last, end);
  float const least = reduce_min(low);
  unsigned columns = bits_of(low == splat(least));
  lowest_score found{least, -1, (columns & (columns - 1)) != 0, any(nan)};
  for (; columns != 0; columns &= columns - 1) {
    int const column = __builtin_ctz(columns);
    int entries = 0, entry = -1;
    for (int i = end[column] + column; i < end[column] + block && i < count; i += width) {
      entries += scores.at(i) == least ? 1 : 0;
      entry = scores.at(i) == least ? i : entry;
    }
    found.many = found.many || entries > 1 || begin[column] != end[column];
    found.entry = entry > found.entry ? entry : found.entry;
  }
  return found;
}

inline int last_lowest(float const* scores, int count, std::int64_t* nan) {
  lowest_score const found = lowest_in(every_score{scores}, count);
  return found.nan ? newest_nan(scores, nullptr, count, all_positions, nan) : found.entry;
}

/// The entry of the highest position in a range whose score is `value`, or -1.
KVPOLICY_OP int newest_equal(float const* scores, int const* position, int count, position_range positions,
                             float value) {
  int found = -1;
  auto const note = [&](int e) KVPOLICY_INLINED {
    bool const equal = scores[e] == value && positions.has(position[e]);
    if (equal && (found < 0 || position[e] > position[found])) found = e;
  };
  ints newest = splat(-1), at = newest, now = iota(vector_tag{}, 0);
  int e = 0;
  for (; e + width <= count; e += width, now = now + splat(width)) {
    ints const here = load(position + e);
    mask const newer = (load_into_register(scores + e) == splat(value)) & (here > newest) &
                       !(splat(positions.low) > here) & (splat(positions.high) > here);
    at = choose(newer, now, at);
    newest = choose(newer, here, newest);
  }
  int entries[width];
  store(at, entries);
  for (int const entry : entries) {
    if (entry >= 0) note(entry);
  }
  for (; e < count; ++e) note(e);
  return found;
}

inline int lowest_of(float const* scores, int const* position, int count, position_range positions, std::int64_t* nan) {
  lowest_score const found = positions.is_all() ? lowest_in(every_score{scores}, count)
                                                : lowest_in(scores_inside{scores, position, positions}, count);
  if (found.nan) return newest_nan(scores, position, count, positions, nan);
  if (!found.many && found.score < __builtin_inff()) return found.entry;
  return newest_equal(scores, position, count, positions, found.score);
}

inline int count_from(int const* position, int count, int limit) {
  ints const none = splat(0), one = splat(1), end = splat(limit);
  ints counts = none;
  int e = 0;
  for (; e + width <= count; e += width) counts = counts + choose(end > load(position + e), none, one);
  int of_columns[width], found = 0;
  store(counts, of_columns);
  for (int const some : of_columns) found += some;
  for (; e < count; ++e) found += position[e] >= limit ? 1 : 0;
  return found;
}

inline constexpr lowest_kernels lowest{last_lowest, lowest_of, count_from};
