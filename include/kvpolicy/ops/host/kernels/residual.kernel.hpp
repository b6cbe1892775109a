// SPDX-License-Identifier: Apache-2.0
// Kernels of residual: kernels/residual.hpp says what they promise.

constexpr int units_of_a_block = hidden_tile::block;
constexpr int vectors_of_a_block = units_of_a_block / width;

/// erf(x / sqrt 2) = above / below, a rational function of Eigen's and XLA's. Behind |x| = 4 sqrt 2 it is 1 or -1.
KVPOLICY_OP void erf_of_gelu(floats x, floats& above, floats& below) {
  floats z = x * splat(0.70710678f);
  z = choose(z < splat(-4.0f), splat(-4.0f), z);
  z = choose(splat(4.0f) < z, splat(4.0f), z);
  floats const square = z * z;
  above = mul_add(square, splat(-2.72614225801306e-10f), splat(2.77068142495902e-8f));
  above = mul_add(above, square, splat(-2.10102402082508e-6f));
  above = mul_add(above, square, splat(-5.69250639462346e-5f));
  above = mul_add(above, square, splat(-7.34990630326855e-4f));
  above = mul_add(above, square, splat(-2.95459980854025e-3f));
  above = mul_add(above, square, splat(-1.60960333262415e-2f));
  above = above * z;
  below = mul_add(square, splat(-1.45660718464996e-5f), splat(-2.13374055278905e-4f));
  below = mul_add(below, square, splat(-1.68282697438203e-3f));
  below = mul_add(below, square, splat(-7.37332916720468e-3f));
  below = mul_add(below, square, splat(-1.42647390514189e-2f));
}

/// x (1 + erf(x / sqrt 2)) / 2 of two vectors, to 3e-7 |x|. One division serves both.
KVPOLICY_OP void gelu(floats& x, floats& y) {
  floats x_above, x_below, y_above, y_below;
  erf_of_gelu(x, x_above, x_below);
  erf_of_gelu(y, y_above, y_below);
  floats const both = splat(1.0f) / (x_below * y_below);
  floats const half_x = x * splat(0.5f), half_y = y * splat(0.5f);
  x = mul_add(half_x, x_above * (both * y_below), half_x);
  y = mul_add(half_y, y_above * (both * x_below), half_y);
}

inline void add_gelu_units(hidden_tile const& tile, float* out) {
  for (int e = 0; e < tile.count; ++e) {
    auto const units = [&](int u) KVPOLICY_INLINED {  // before gelu
      floats const value = load(tile.products + e * units_of_a_block + u) + load(tile.constant + u);
      return mul_add(load(tile.slope + u), splat(tile.rule[e]), value);
    };
    floats all = floats{};
    for (int u = 0; u < units_of_a_block; u += 2 * width) {
      floats first = units(u), second = units(u + width);
      gelu(first, second);
      all = mul_add(first, load(tile.last + u), all);
      all = mul_add(second, load(tile.last + u + width), all);
    }
    out[e] += reduce_add(all);
  }
}

/// The largest of a row of 32 logits and `least`.
KVPOLICY_OP float largest_of(float const* row, float least) {
  floats largest = splat(least);
  for (int i = 0; i < units_of_a_block; i += width) largest = max_or_second(load(row + i), largest);
  return reduce_max(largest);
}
/// Replaces each logit of a row by e^(logit - row_max), and returns their sum.
KVPOLICY_OP float exp_row(float* row, float row_max) {
  floats total = floats{};
  for (int i = 0; i < units_of_a_block; i += width) {
    floats const value = exp_of_negative(load(row + i) - splat(row_max));
    store(value, row + i);
    total = total + value;
  }
  return reduce_add(total);
}

inline void add_bias(float const* from, int count, float const* constant, float const* slope, float const* rule,
                     float* to, std::int64_t stride) {
  for (int i = 0; i < units_of_a_block; i += width) {
    floats const base = load(constant + i), step = load(slope + i);
    for (int e = 0; e < count; ++e) {
      floats const value = load(from + e * units_of_a_block + i) + base;
      store(mul_add(step, splat(rule[e]), value), to + e * stride + i);
    }
  }
}

inline void softmax_block(float const* from, int count, float const* constant, float const* slope, float const* rule,
                          float* to, std::int64_t stride) {
  add_bias(from, count, constant, slope, rule, to, stride);
  for (int e = 0; e < count; ++e, to += stride) {
    float const share = 1.0f / exp_row(to, largest_of(to, -std::numeric_limits<float>::infinity()));
    for (int i = 0; i < units_of_a_block; i += width) store(load(to + i) * splat(share), to + i);
  }
}

inline void advance_softmax(float* values, int count, int there, float* row_max, float* sums, float* shrink) {
  constexpr float least = -std::numeric_limits<float>::infinity();
  for (int e = 0; e < count; ++e) {
    float* const row = values + e * units_of_a_block;
    for (int i = there; i < units_of_a_block; ++i) row[i] = least;
    float const now = largest_of(row, row_max[e]);
    float const total = exp_row(row, now);
    shrink[e] = row_max[e] == now ? 1.0f : row_max[e] == least ? 0.0f : __builtin_expf(row_max[e] - now);
    sums[e] = mul_add(sums[e], shrink[e], total);
    row_max[e] = now;
  }
}

inline void scale_and_add(float const* from, int count, float const* shrink, float* to, std::int64_t stride) {
  for (int e = 0; e < count; ++e) {
    for (int i = 0; i < units_of_a_block; i += width) {
      float* const at = to + e * stride + i;
      floats const more = load(from + e * units_of_a_block + i);
      store(shrink == nullptr ? more : mul_add(load(at), splat(shrink[e]), more), at);
    }
  }
}

inline void divide(float const* from, int dims, float by, float* to) {
  for_each_vector(0, dims,
                  [&](auto kind, int d) KVPOLICY_INLINED { store(load(kind, from + d) / splat(kind, by), to + d); });
}

inline constexpr residual_kernels residual{add_gelu_units, softmax_block, advance_softmax,
                                           scale_and_add,  add_bias,      divide};
