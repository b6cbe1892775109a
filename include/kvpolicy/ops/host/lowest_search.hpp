// Finds the lowest of some scores in one pass, with vectors of any width.
#pragma once

#include <cstddef>
#include <kvpolicy/ops/host/vectors.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

template <int Width>
struct lowest_search {
  using floats = typename vector_of<Width>::floats;
  using ints = typename vector_of<Width>::ints;
  using four_floats = typename vector_of<4>::floats;
  using four_ints = typename vector_of<4>::ints;
  static constexpr int vectors = 8;  ///< of a block of entries, whose lowest scores are compared with those before
  static constexpr int block = vectors * Width;
  static constexpr float none = std::numeric_limits<float>::infinity();

  /// Fetches the `count` numbers that are read 3 KiB later. Behind a short row the row of the next lane begins.
  template <class Number>
  [[gnu::always_inline]] static inline void fetch(Number const* from, int count = block) {
    constexpr int ahead = 768;
    for (int i = 0; i < count; i += 16) __builtin_prefetch(from + ahead + i, 0, 3);
  }

  /// The lowest score of each column of the blocks so far: entry e is in column e mod Width.
  struct lowest_columns {
    floats low;
    floats sums;  ///< NaN if a score is; if infinities of both signs are among them, too
    ints at;      ///< the first entry of the last block, or vector, whose lowest score is `low`
    ints ties;    ///< not 0 if another block has it, too

    /// Begins without any score. nvcc crashes on initializers of such members.
    [[gnu::always_inline]] inline void clear() {
      low = floats{} + none;
      sums = floats{};
      at = ints{};
      ties = ints{};
    }

    /// The next `Vectors` vectors of scores, from entry e on.
    template <int Vectors>
    [[gnu::always_inline]] inline void note(float const* scores, int e) {
      floats least;
      get_once(least, scores);
      floats sum = least;
      for (std::size_t v = 1; v < Vectors; ++v) {
        floats next;
        get_once(next, scores + v * Width);
        least = next < least ? next : least;
        sum += next;
      }
      note_one(least, sum, e);
    }

    /// The last vector of scores, from entry e on. The first `before` of them were noted before.
    [[gnu::always_inline]] inline void note_last(float const* scores, int e, int before) {
      ints index;
      for (int i = 0; i < Width; ++i) index[i] = i;
      floats next;
      get_once(next, scores);
      next = index >= before ? next : floats{} + none;
      note_one(next, next, e);
    }

   private:
    [[gnu::always_inline]] inline void note_one(floats const& least, floats const& sum, int e) {
      ints const less = least < low;
      ints const same = least == low;
      ties = (ties | same) & ~less;
      at = less ? ints{} + e : at;
      low = least < low ? least : low;
      sums += sum;
    }
  };

  /// What is known of the lowest score. If `many`, several entries may have it.
  struct lowest_found {
    float score = none;
    int block = 0;   ///< its entry, less `column`: the first entry of a block that has it, or one of a single vector
    int column = 0;  ///< the column that has it
    bool many = false;
    bool maybe_nan = false;
  };

  [[gnu::always_inline]] static inline float least_of(floats const& all) {
    float each[std::size_t{Width}];
    put(all, each);
    four_floats least;
    get(least, each);
    for (std::size_t i = 4; i < Width; i += 4) {
      four_floats next;
      get(next, each + i);
      least = next < least ? next : least;
    }
    float const a = least[1] < least[0] ? least[1] : least[0];
    float const b = least[3] < least[2] ? least[3] : least[2];
    return b < a ? b : a;
  }

  [[gnu::always_inline]] static inline int sum_of(ints const& all) {
    int each[std::size_t{Width}];
    put(all, each);
    four_ints sum;
    get(sum, each);
    for (std::size_t i = 4; i < Width; i += 4) {
      four_ints next;
      get(next, each + i);
      sum += next;
    }
    return sum[0] + sum[1] + (sum[2] + sum[3]);
  }

  [[gnu::always_inline]] static inline lowest_found found_in(lowest_columns const& columns) {
    constexpr int is_nan = 1 << 16;
    ints index;
    for (int i = 0; i < Width; ++i) index[i] = i;
    lowest_found found;
    found.score = least_of(columns.low);
    ints const here = columns.low == found.score;
    int const told = sum_of((here & 1) + (here & columns.ties & 1) + ((columns.sums != columns.sums) & is_nan));
    found.maybe_nan = told >= is_nan;
    found.many = told % is_nan != 1;
    if (found.many) return found;
    int const entry = sum_of(here & (columns.at + index));
    found.column = entry % Width;
    found.block = entry - found.column;
    return found;
  }

  /// The entry of the lowest score, in the column and the block that were found. The block has `of_block` scores.
  [[gnu::always_inline]] static inline int entry_in_block(lowest_found& found, float const* scores, int of_block) {
    int entry = 0;
    int times = 0;
    for (int e = found.column; e < of_block; e += Width) {
      int const same = scores[e] == found.score ? -1 : 0;
      entry |= same & (found.block + e);
      times -= same;
    }
    found.many = found.many || times > 1;
    return entry;
  }

  /// The same where entries [begin, count) stand behind the columns; `entry` was found in these.
  [[gnu::always_inline]] static inline int entry_of_rest(lowest_found& found, int entry, float const* rest, int begin,
                                                         int count) {
    for (int e = begin; e < count; ++e) {
      float const score = rest[e - begin];
      found.maybe_nan = found.maybe_nan || score != score;
      if (score > found.score || score != score) continue;
      found.many = score == found.score;
      found.score = score;
      entry = e;
    }
    return entry;
  }

  /// The lowest of `count` scores, and its entry.
  [[gnu::always_inline]] static inline int lowest_entry(float const* scores, int count, lowest_found& found) {
    lowest_columns columns;
    columns.clear();
    int e = 0;
    for (; e + block <= count; e += block) {
      fetch(scores + e);
      columns.template note<vectors>(scores + e, e);
    }
    int const blocks_end = e;
    for (; e + Width <= count; e += Width) columns.template note<1>(scores + e, e);
    found = found_in(columns);
    int const of_block = e == 0 ? 0 : found.block < blocks_end ? block : Width;
    return entry_of_rest(found, entry_in_block(found, scores + found.block, of_block), scores + e, e, count);
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
