// SPDX-License-Identifier: Apache-2.0
// Kernels of the gates: kernels/gates.hpp says what they promise.

inline void rms_normalise(float* row, int dims, float const* by) {
  floats squares = floats{};
  int d = 0;
  for (; d + width <= dims; d += width) squares = mul_add(load(row + d), load(row + d), squares);
  float all = reduce_add(squares);
  for (; d < dims; ++d) all = mul_add(row[d], row[d], all);
  float const scale = 1.0f / __builtin_sqrtf(all / static_cast<float>(dims) + 1e-6f);
  for (d = 0; d + width <= dims; d += width) {
    store(load(row + d) * splat(scale) * load(by + d), row + d);
  }
  for (; d < dims; ++d) row[d] *= scale * by[d];
}

inline void activate(float* row, int units, float const* bias) {
  for (int u = 0; u < units; u += width) {
    floats const value = load(row + u) + load(bias + u);
    mask const is_negative = value < floats{};
    floats const tail = exp_of_negative(choose(is_negative, value, -value));
    store(value * choose(is_negative, tail, splat(1.0f)) / (splat(1.0f) + tail), row + u);
  }
}

inline constexpr int columns_ahead = 192;  ///< how far weights are prefetched: that many floats of sixteen units

/// Prefetches the lines of all units that are read `columns_ahead` columns after column `c`.
KVPOLICY_OP void prefetch_ahead(unit_weights const& weights, int c) {
  int const ahead = c + columns_ahead;
  float const* const at = ahead < weights.columns ? weights.of_unit + ahead : weights.next + (ahead - weights.columns);
  for (int u = 0; u < unit_weights::units; ++u) __builtin_prefetch(at + u * weights.stride, 0, 3);
}

inline void sum_units(unit_weights const& weights, float const* row, float* out) {
  constexpr int vectors = unit_weights::units / width;
  floats sums[vectors];
  unrolled<vectors>([&](auto i) KVPOLICY_INLINED { sums[i] = floats{}; });
  auto const unit = [&](int u, int c) KVPOLICY_INLINED { return weights.of_unit + u * weights.stride + c; };
  int c = 0;
  for (; c + 4 <= weights.columns; c += 4) {
    if (c % floats_of_a_line == 0) prefetch_ahead(weights, c);
    unrolled<vectors>([&](auto i) KVPOLICY_INLINED {
      floats column[4];
      load_columns([&](int u) KVPOLICY_INLINED { return reinterpret_cast<std::byte const*>(unit(i * width + u, c)); },
                   column);
      unrolled<4>([&](auto k) KVPOLICY_INLINED { sums[i] = mul_add(column[k], splat(row[c + k]), sums[i]); });
    });
  }
  unrolled<vectors>([&](auto i) KVPOLICY_INLINED { store(sums[i], out + i * width); });
  for (; c < weights.columns; ++c) {
    for (int u = 0; u < unit_weights::units; ++u) out[u] = mul_add(*unit(u, c), row[c], out[u]);
  }
}

inline constexpr gates_kernels gates{rms_normalise, activate, sum_units};
