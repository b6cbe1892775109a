// Finds the lowest score of a row, for each instruction set.
#pragma once

#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// Positions [low, high).
struct position_range {
  int low;
  int high;
};

/// - `last_lowest` returns the index of the lowest of `count` >= 1 scores, and the last one of equal scores; NaN is
///   below every number.
/// - `lowest_of` does so among the entries whose positions are in a range, and returns the one of the highest position
///   of those with equal scores; -1 if there is none.
/// - `count_from` returns the number of positions that are `limit` or higher.
struct argmin_kernels {
  int (*last_lowest)(float const* scores, int count, std::int64_t* nan) = nullptr;
  int (*lowest_of)(float const* scores, int const* position, int count, position_range among,
                   std::int64_t* nan) = nullptr;
  int (*count_from)(int const* position, int count, int limit) = nullptr;
};

template <int Width>
struct argmin_bodies {
  using floats = typename vector_of<Width>::floats;
  using ints = typename vector_of<Width>::ints;
  static constexpr int chains = 2;

  [[gnu::always_inline]] static inline bool goes_before(float a, float b) { return a <= b || a != a; }

  [[gnu::always_inline]] static inline int last_lowest(float const* scores, int count, std::int64_t* nan) {
    int best = 0;
    int e = 1;
    std::int64_t nans = scores[0] != scores[0] ? 1 : 0;
    if (count >= chains * Width) {
      floats low[chains];
      ints at[chains];
      ints now[chains];
      ints unordered{};
      for (int c = 0; c < chains; ++c) {
        get(low[c], scores + c * Width);
        for (int i = 0; i < Width; ++i) now[c][i] = c * Width + i;
        at[c] = now[c];
        unordered |= low[c] != low[c];
      }
      for (e = chains * Width; e + chains * Width <= count; e += chains * Width) {
        for (int c = 0; c < chains; ++c) {
          floats value;
          get(value, scores + e + c * Width);
          now[c] += chains * Width;
          ints const take = value <= low[c];
          unordered |= value != value;
          low[c] = take ? value : low[c];
          at[c] = take ? now[c] : at[c];
        }
      }
      best = at[0][0];
      for (int c = 0; c < chains; ++c) {
        for (int i = 0; i < Width; ++i) {
          int const other = at[c][i];
          bool const before = low[c][i] < scores[best] || (low[c][i] == scores[best] && other > best);
          best = before ? other : best;
        }
      }
      bool any = false;
      for (int i = 0; i < Width; ++i) any = any || unordered[i] != 0;
      if (any) e = 1, best = 0;  // then continues one by one
      if (!any) nans = 0;
    }
    for (; e < count; ++e) {
      nans += scores[e] != scores[e] ? 1 : 0;
      bool const never = scores[best] != scores[best] && scores[e] == scores[e];
      best = !never && goes_before(scores[e], scores[best]) ? e : best;
    }
    *nan += nans;
    return best;
  }

  /// The lowest score of entries that all compete. Positions are read only if several entries have it.
  [[gnu::always_inline]] static inline int lowest_of_all(float const* scores, int const* position, int count,
                                                         std::int64_t* nan) {
    int const last = last_lowest(scores, count, nan);
    float const value = scores[last];
    ints equal{};
    int e = 0;
    for (; e + Width <= last; e += Width) {
      floats score;
      get(score, scores + e);
      equal |= score == value;
    }
    bool alone = value == value;
    for (int i = 0; i < Width; ++i) alone = alone && equal[i] == 0;
    for (; e < last; ++e) alone = alone && scores[e] != value;
    if (alone) return last;
    std::int64_t counted = 0;
    constexpr position_range all{std::numeric_limits<int>::min(), std::numeric_limits<int>::max()};
    return value == value ? newest_of(scores, position, count, all, value)
                          : newest_nan(scores, position, count, all, &counted);
  }

  /// Two passes: the first finds the lowest score, the second the newest entry that has it.
  [[gnu::always_inline]] static inline int lowest_of(float const* scores, int const* position, int count,
                                                     position_range among, std::int64_t* nan) {
    if (among.low <= 0 && among.high == std::numeric_limits<int>::max()) {
      return lowest_of_all(scores, position, count, nan);
    }
    constexpr float none = std::numeric_limits<float>::infinity();
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
    bool any = false;
    for (int i = 0; i < Width; ++i) {
      lowest = low[i] < lowest ? low[i] : lowest;
      any = any || unordered[i] != unordered[i];
    }
    for (; e < count; ++e) {
      if (position[e] < among.low || position[e] >= among.high) continue;
      any = any || scores[e] != scores[e];
      lowest = scores[e] < lowest ? scores[e] : lowest;
    }
    return any ? newest_nan(scores, position, count, among, nan) : newest_of(scores, position, count, among, lowest);
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
    ints const none = ints{} - 1;
    ints newest = none;
    ints index = none;
    ints now;
    for (int i = 0; i < Width; ++i) now[i] = i;
    int e = 0;
    for (; e + Width <= count; e += Width) {
      floats score;
      ints at;
      get(score, scores + e);
      get(at, position + e);
      at = score == value ? at : none;
      at = at < among.low ? none : at;
      at = at >= among.high ? none : at;
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

/// Code for any compiler and processor.
struct portable_argmin {
  static int last_lowest(float const* scores, int count, std::int64_t* nan) {
    return argmin_bodies<4>::last_lowest(scores, count, nan);
  }
  static int lowest_of(float const* scores, int const* position, int count, position_range among, std::int64_t* nan) {
    return argmin_bodies<4>::lowest_of(scores, position, count, among, nan);
  }
  static int count_from(int const* position, int count, int limit) {
    return argmin_bodies<4>::count_from(position, count, limit);
  }
  static constexpr argmin_kernels kernels{last_lowest, lowest_of, count_from};
};

#if defined(__x86_64__)

struct avx2_argmin {
  [[gnu::target(KVPOLICY_AVX2)]] static int last_lowest(float const* scores, int count, std::int64_t* nan) {
    return argmin_bodies<8>::last_lowest(scores, count, nan);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static int lowest_of(float const* scores, int const* position, int count,
                                                      position_range among, std::int64_t* nan) {
    return argmin_bodies<8>::lowest_of(scores, position, count, among, nan);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static int count_from(int const* position, int count, int limit) {
    return argmin_bodies<8>::count_from(position, count, limit);
  }
  static constexpr argmin_kernels kernels{last_lowest, lowest_of, count_from};
};

struct avx512_argmin {
  [[gnu::target(KVPOLICY_AVX512)]] static int last_lowest(float const* scores, int count, std::int64_t* nan) {
    return argmin_bodies<16>::last_lowest(scores, count, nan);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static int count_from(int const* position, int count, int limit) {
    return argmin_bodies<16>::count_from(position, count, limit);
  }
  /// g++ 12 makes slow code of choices between wider vectors.
  static constexpr argmin_kernels kernels{last_lowest, avx2_argmin::lowest_of, count_from};
};

#endif

/// The kernel for an executor's instruction set.
[[nodiscard]] inline argmin_kernels const& argmin_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_argmin::kernels;
  if (simd_level == isa::avx2) return avx2_argmin::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_argmin::kernels;
}

}  // namespace KVPOLICY_NAMESPACE::detail
