// Softmax of blocks of few rows: a vector contains several entries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <kvpolicy/ops/host/row_blocks.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Code for vectors of `Width` floats.
template <int Width>
struct few_bodies {
  using floats = typename vector_of<Width>::floats;
  using ints = typename vector_of<Width>::ints;
  static constexpr int entries = Width / few_rows;

  /// Repeats the number of each row for every entry of a vector.
  [[gnu::always_inline]] static inline void spread(float const* rows, floats& to) {
    float all[static_cast<std::size_t>(Width)];
    for (int i = 0; i < Width; ++i) all[i] = rows[i % few_rows];
    get(to, all);
  }
  /// Writes limits: an entry of the vector that begins at e is visible if its limit is above e.
  [[gnu::always_inline]] static inline void limits(block_view const& block, ints& to) {
    int all[static_cast<std::size_t>(Width)];
    for (int i = 0; i < Width; ++i) {
      int const seen = block.seen[i % few_rows] - block.first;
      all[i] = (seen < block.count ? seen : block.count) - i / few_rows;
    }
    get(to, all);
  }
  /// Reduces the numbers of each row to their sum or maximum.
  [[gnu::always_inline]] static inline void gather(floats const& from, bool maximum, float* rows) {
    float all[static_cast<std::size_t>(Width)];
    put(from, all);
    for (int i = few_rows; i < Width; ++i) {
      float& row = all[i % few_rows];
      row = !maximum ? row + all[i] : all[i] > row ? all[i] : row;
    }
    std::copy_n(all, few_rows, rows);
  }

  /// Like block_bodies::advance. Up to `entries` - 1 values after the last one are overwritten.
  [[gnu::always_inline]] static inline void advance(block_view const& block, float* row_max, float* sum) {
    floats const lowest = __builtin_bit_cast(floats, ints{} - 0x00800000);
    ints limit;
    floats now;
    limits(block, limit);
    spread(row_max, now);
    for (int e = 0; e < block.count; e += entries) {
      floats value;
      get(value, block.values + static_cast<std::ptrdiff_t>(e) * few_rows);
      value = limit > e ? value : lowest;
      now = value > now ? value : now;
    }
    float before[few_rows];
    std::copy_n(row_max, few_rows, before);
    gather(now, true, row_max);
    std::copy_n(row_max, few_rows, block.scale);
    spread(row_max, now);
    floats const zero = now == lowest ? floats{} : now;
    floats total{};
    for (int e = 0; e < block.count; e += entries) {
      floats value;
      get(value, block.values + static_cast<std::ptrdiff_t>(e) * few_rows);
      value -= zero;
      exp_of_negative<Width>(value);
      put(value, block.values + static_cast<std::ptrdiff_t>(e) * few_rows);
      total += limit > e ? value : floats{};
    }
    floats shrink;
    float factor[static_cast<std::size_t>(Width)];
    float sums[few_rows];
    spread(before, shrink);
    shrink -= zero;
    exp_of_negative<Width>(shrink);
    put(shrink, factor);
    gather(total, false, sums);
    for (int r = 0; r < few_rows; ++r) sum[r] = sum[r] * factor[r] + sums[r];
  }

  /// Like block_bodies::reduce. Up to `entries` - 1 values after the last one are read.
  [[gnu::always_inline]] static inline void reduce(block_view const& block, bool maximum, bool grow, float* out) {
    ints limit;
    floats scale;
    limits(block, limit);
    spread(block.scale, scale);
    for (int e = 0; e < block.count; e += entries) {
      floats value;
      float all[static_cast<std::size_t>(Width)];
      get(value, block.values + static_cast<std::ptrdiff_t>(e) * few_rows);
      put(limit > e ? value * scale : floats{}, all);
      int const there = entries < block.count - e ? entries : block.count - e;
      for (int i = 0; i < there; ++i) {
        float const* const of = all + i * few_rows;
        float const sum =
            maximum ? higher(higher(of[0], of[1]), higher(of[2], of[3])) : (of[0] + of[1]) + (of[2] + of[3]);
        out[e + i] = !grow ? sum : maximum ? higher(out[e + i], sum) : out[e + i] + sum;
      }
    }
  }

 private:
  [[gnu::always_inline]] static inline float higher(float a, float b) { return a >= b || a != a ? a : b; }
};

}  // namespace KVPOLICY_NAMESPACE::detail
