// Kernels of residual other than products of blocks, for each instruction set.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/row_blocks.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// A tile of 32 hidden units of a head, for each of some entries.
struct hidden_tile {
  float const* of_key;      ///< [count][32]
  float const* of_context;  ///< [count][32]
  float const* constant;    ///< [32]
  float const* slope;       ///< [32]: factor of the entry's rule score
  float const* last;        ///< [32]: weights of the output, fc2
  float const* rule;        ///< [count]
  int count;
};

struct residual_kernels {
  /// to[d] += from[d].
  void (*add)(float const* from, int dims, float* to) = nullptr;
  /// out[e] += sum over 32 hidden units of last * gelu(of_key + of_context + constant + slope * rule).
  void (*perceive)(hidden_tile const& tile, float* out) = nullptr;
  /// One step of an online softmax over a block of 32 logits, of which the first `there` are used. They become
  /// e^(logit - row_max), and `shrink` becomes the factor for the sums so far.
  void (*advance)(float* values, int count, int there, float* row_max, float* sum, float* shrink) = nullptr;
  /// to[e][0 .. 31] = to[e] * shrink[e] + from[e]. Rows of `to` are `stride` apart. With shrink == null, to = from.
  void (*blend)(float const* from, int count, float const* shrink, float* to, std::int64_t stride) = nullptr;
  /// to[e][0 .. 31] = from[e] + constant + slope * rule[e]. Rows of `to` are `stride` apart.
  void (*shift)(float const* from, int count, float const* constant, float const* slope, float const* rule, float* to,
                std::int64_t stride) = nullptr;
  /// to[d] = from[d] / by.
  void (*divide)(float const* from, int dims, float by, float* to) = nullptr;
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

  /// x (1 + erf(x / sqrt 2)) / 2 of two vectors, to 2e-7 |x|: Abramowitz and Stegun 7.1.26. One division serves both.
  [[gnu::always_inline]] static inline void gelu(floats& x, floats& y) {
    floats x_size = x;
    floats y_size = y;
    make_size(x_size);
    make_size(y_size);
    floats const x_by = 1.0f + x_size * 0.3275911f;
    floats const y_by = 1.0f + y_size * 0.3275911f;
    floats const both = 1.0f / (x_by * y_by);
    gelu(x, x_size, both * y_by);
    gelu(y, y_size, both * x_by);
  }
  /// |x| / sqrt 2, or 20 if that is more, from where on e^(-size^2) is 0.
  [[gnu::always_inline]] static inline void make_size(floats& x) {
    x = (x < 0.0f ? -x : x) * 0.70710678f;
    x = x < 20.0f ? x : floats{} + 20.0f;
  }
  [[gnu::always_inline]] static inline void gelu(floats& x, floats const& size, floats const& t) {
    floats tail = -size * size;
    exp_of_negative<Width>(tail);
    floats p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    tail *= p * t;
    x = x * 0.5f * (x < 0.0f ? tail : 2.0f - tail);
  }

  /// The hidden units of an entry from unit `u` on, before gelu.
  [[gnu::always_inline]] static inline void hidden_units(hidden_tile const& tile, int e, int u, floats& value) {
    floats part;
    get(value, tile.of_key + e * block + u);
    get(part, tile.of_context + e * block + u);
    value += part;
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

  [[gnu::always_inline]] static inline void advance(float* values, int count, int there, float* row_max, float* sum,
                                                    float* shrink) {
    for (int e = 0; e < count; ++e) {
      float* const row = values + e * block;
      std::fill(row + there, row + block, -std::numeric_limits<float>::infinity());
      floats largest = floats{} + row_max[e];
      for (int i = 0; i < block; i += Width) {
        floats value;
        get(value, row + i);
        largest = value > largest ? value : largest;
      }
      float const now = block_bodies<Width, block>::across(largest, true);
      floats total{};
      for (int i = 0; i < block; i += Width) {
        floats value;
        get(value, row + i);
        value -= now;
        exp_of_negative<Width>(value);
        put(value, row + i);
        total += value;
      }
      bool const is_first = row_max[e] == -std::numeric_limits<float>::infinity();
      shrink[e] = row_max[e] == now ? 1.0f : is_first ? 0.0f : std::exp(row_max[e] - now);
      sum[e] = sum[e] * shrink[e] + block_bodies<Width, block>::across(total, false);
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

/// Code for any compiler and processor.
struct portable_residual {
  using bodies = residual_bodies<4>;
  static void add(float const* from, int dims, float* to) { bodies::add(from, dims, to); }
  static void perceive(hidden_tile const& tile, float* out) { bodies::perceive(tile, out); }
  static void advance(float* values, int count, int there, float* row_max, float* sum, float* shrink) {
    bodies::advance(values, count, there, row_max, sum, shrink);
  }
  static void blend(float const* from, int count, float const* shrink, float* to, std::int64_t stride) {
    bodies::blend(from, count, shrink, to, stride);
  }
  static void shift(float const* from, int count, float const* constant, float const* slope, float const* rule,
                    float* to, std::int64_t stride) {
    bodies::shift(from, count, constant, slope, rule, to, stride);
  }
  static void divide(float const* from, int dims, float by, float* to) { bodies::divide(from, dims, by, to); }
  static constexpr residual_kernels kernels{add, perceive, advance, blend, shift, divide};
};

#if defined(__x86_64__)

struct avx2_residual {
  using bodies = residual_bodies<8>;
  [[gnu::target(KVPOLICY_AVX2)]] static void add(float const* from, int dims, float* to) {
    bodies::add(from, dims, to);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void perceive(hidden_tile const& tile, float* out) {
    bodies::perceive(tile, out);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void advance(float* values, int count, int there, float* row_max, float* sum,
                                                     float* shrink) {
    bodies::advance(values, count, there, row_max, sum, shrink);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void blend(float const* from, int count, float const* shrink, float* to,
                                                   std::int64_t stride) {
    bodies::blend(from, count, shrink, to, stride);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void shift(float const* from, int count, float const* constant,
                                                   float const* slope, float const* rule, float* to,
                                                   std::int64_t stride) {
    bodies::shift(from, count, constant, slope, rule, to, stride);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void divide(float const* from, int dims, float by, float* to) {
    bodies::divide(from, dims, by, to);
  }
  static constexpr residual_kernels kernels{add, perceive, advance, blend, shift, divide};
};

struct avx512_residual {
  using bodies = residual_bodies<16>;
  [[gnu::target(KVPOLICY_AVX512)]] static void add(float const* from, int dims, float* to) {
    bodies::add(from, dims, to);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void perceive(hidden_tile const& tile, float* out) {
    bodies::perceive(tile, out);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void advance(float* values, int count, int there, float* row_max, float* sum,
                                                       float* shrink) {
    bodies::advance(values, count, there, row_max, sum, shrink);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void blend(float const* from, int count, float const* shrink, float* to,
                                                     std::int64_t stride) {
    bodies::blend(from, count, shrink, to, stride);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void shift(float const* from, int count, float const* constant,
                                                     float const* slope, float const* rule, float* to,
                                                     std::int64_t stride) {
    bodies::shift(from, count, constant, slope, rule, to, stride);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void divide(float const* from, int dims, float by, float* to) {
    bodies::divide(from, dims, by, to);
  }
  static constexpr residual_kernels kernels{add, perceive, advance, blend, shift, divide};
};

#endif

/// The kernels for an executor's instruction set.
[[nodiscard]] inline residual_kernels const& residual_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_residual::kernels;
  if (simd_level == isa::avx2) return avx2_residual::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_residual::kernels;
}

}  // namespace KVPOLICY_NAMESPACE::detail
