// The generic code of residual's kernels, for vectors of any width.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <kvpolicy/ops/host/row_blocks.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// A tile of 32 hidden units of a head, for each of some entries.
struct hidden_tile {
  float const* products;  ///< [count][32]: weights times the entry's key and context
  float const* constant;  ///< [32]
  float const* slope;     ///< [32]: factor of the entry's rule score
  float const* last;      ///< [32]: weights of the output, fc2
  float const* rule;      ///< [count]
  int count;
};

template <int Width>
struct residual_bodies {
  using floats = typename vector_of<Width>::floats;
  static constexpr int block = 32;

  [[gnu::always_inline]] static inline void add(float const* from, int dims, float* to) {
    int d = 0;
    for (; d + Width <= dims; d += Width) {
      floats a;
      floats b;
      get(a, from + d);
      get(b, to + d);
      put(a + b, to + d);
    }
    for (; d < dims; ++d) to[d] += from[d];
  }

  /// x (1 + erf(x / sqrt 2)) / 2 of two vectors, to 3e-7 |x|. One division serves both.
  [[gnu::always_inline]] static inline void gelu(floats& x, floats& y) {
    floats x_above;
    floats x_below;
    floats y_above;
    floats y_below;
    erf_of_gelu(x, x_above, x_below);
    erf_of_gelu(y, y_above, y_below);
    floats const both = 1.0f / (x_below * y_below);
    x_above *= both * y_below;
    y_above *= both * x_below;
    x = x * 0.5f + x * 0.5f * x_above;
    y = y * 0.5f + y * 0.5f * y_above;
  }
  /// erf(x / sqrt 2) = above / below, a rational function of Eigen's and XLA's. Behind |x| = 4 sqrt 2 it is 1 or -1.
  [[gnu::always_inline]] static inline void erf_of_gelu(floats const& x, floats& above, floats& below) {
    floats z = x * 0.70710678f;
    z = z < -4.0f ? floats{} - 4.0f : z;
    z = z > 4.0f ? floats{} + 4.0f : z;
    floats const square = z * z;
    above = square * -2.72614225801306e-10f + 2.77068142495902e-8f;
    above = above * square - 2.10102402082508e-6f;
    above = above * square - 5.69250639462346e-5f;
    above = above * square - 7.34990630326855e-4f;
    above = above * square - 2.95459980854025e-3f;
    above = above * square - 1.60960333262415e-2f;
    above *= z;
    below = square * -1.45660718464996e-5f - 2.13374055278905e-4f;
    below = below * square - 1.68282697438203e-3f;
    below = below * square - 7.37332916720468e-3f;
    below = below * square - 1.42647390514189e-2f;
  }

  /// The hidden units of an entry from unit `u` on, before gelu.
  [[gnu::always_inline]] static inline void hidden_units(hidden_tile const& tile, int e, int u, floats& value) {
    floats part;
    get(value, tile.products + e * block + u);
    get(part, tile.constant + u);
    value += part;
    get(part, tile.slope + u);
    value += part * tile.rule[e];
  }

  [[gnu::always_inline]] static inline void perceive(hidden_tile const& tile, float* out) {
    for (int e = 0; e < tile.count; ++e) {
      floats all{};
      for (int u = 0; u < block; u += 2 * Width) {
        floats first;
        floats second;
        floats last;
        hidden_units(tile, e, u, first);
        hidden_units(tile, e, u + Width, second);
        gelu(first, second);
        get(last, tile.last + u);
        all += first * last;
        get(last, tile.last + u + Width);
        all += second * last;
      }
      out[e] += block_bodies<Width, block>::across(all, false);
    }
  }

  /// The largest of a row of 32 logits and `least`.
  [[gnu::always_inline]] static inline float largest_of(float const* row, float least) {
    floats largest = floats{} + least;
    for (int i = 0; i < block; i += Width) {
      floats value;
      get(value, row + i);
      largest = value > largest ? value : largest;
    }
    return block_bodies<Width, block>::across(largest, true);
  }
  /// Replaces each logit of a row by e^(logit - row_max), and returns their sum.
  [[gnu::always_inline]] static inline float exp_row(float* row, float row_max) {
    floats total{};
    for (int i = 0; i < block; i += Width) {
      floats value;
      get(value, row + i);
      value -= row_max;
      exp_of_negative<Width>(value);
      put(value, row + i);
      total += value;
    }
    return block_bodies<Width, block>::across(total, false);
  }

  [[gnu::always_inline]] static inline void attend(float const* from, int count, float const* constant,
                                                   float const* slope, float const* rule, float* to,
                                                   std::int64_t stride) {
    shift(from, count, constant, slope, rule, to, stride);
    for (int e = 0; e < count; ++e, to += stride) {
      float const share = 1.0f / exp_row(to, largest_of(to, -std::numeric_limits<float>::infinity()));
      for (int i = 0; i < block; i += Width) {
        floats value;
        get(value, to + i);
        put(value * share, to + i);
      }
    }
  }

  [[gnu::always_inline]] static inline void advance(float* values, int count, int there, float* row_max, float* sum,
                                                    float* shrink) {
    for (int e = 0; e < count; ++e) {
      float* const row = values + e * block;
      std::fill(row + there, row + block, -std::numeric_limits<float>::infinity());
      float const now = largest_of(row, row_max[e]);
      float const total = exp_row(row, now);
      bool const is_first = row_max[e] == -std::numeric_limits<float>::infinity();
      shrink[e] = row_max[e] == now ? 1.0f : is_first ? 0.0f : std::exp(row_max[e] - now);
      sum[e] = sum[e] * shrink[e] + total;
      row_max[e] = now;
    }
  }

  [[gnu::always_inline]] static inline void blend(float const* from, int count, float const* shrink, float* to,
                                                  std::int64_t stride) {
    for (int e = 0; e < count; ++e) {
      for (int i = 0; i < block; i += Width) {
        floats more;
        get(more, from + e * block + i);
        if (shrink != nullptr) {
          floats so_far;
          get(so_far, to + e * stride + i);
          more += so_far * shrink[e];
        }
        put(more, to + e * stride + i);
      }
    }
  }

  [[gnu::always_inline]] static inline void shift(float const* from, int count, float const* constant,
                                                  float const* slope, float const* rule, float* to,
                                                  std::int64_t stride) {
    for (int i = 0; i < block; i += Width) {
      floats base;
      floats step;
      get(base, constant + i);
      get(step, slope + i);
      for (int e = 0; e < count; ++e) {
        floats value;
        get(value, from + e * block + i);
        put(value + base + step * rule[e], to + e * stride + i);
      }
    }
  }

  [[gnu::always_inline]] static inline void divide(float const* from, int dims, float by, float* to) {
    int d = 0;
    for (; d + Width <= dims; d += Width) {
      floats value;
      get(value, from + d);
      put(value / by, to + d);
    }
    for (; d < dims; ++d) to[d] = from[d] / by;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
