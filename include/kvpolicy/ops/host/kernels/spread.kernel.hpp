// SPDX-License-Identifier: Apache-2.0
// How unevenly channels lie in bounds: kernels/spread.hpp says what it promises.

/// Adds up what visit(kind, d) gives for each channel, four vectors at a time.
template <class Visit>
KVPOLICY_OP float sum_of_channels(int dims, Visit const& visit) {
  floats sum[4];
  unrolled<4>([&](auto i) KVPOLICY_INLINED { sum[i] = floats{}; });
  int d = 0;
  for (; d + 4 * width <= dims; d += 4 * width) {
    unrolled<4>([&](auto i) KVPOLICY_INLINED { sum[i] = sum[i] + visit(vector_tag{}, d + i * width); });
  }
  for (; d + width <= dims; d += width) sum[0] = sum[0] + visit(vector_tag{}, d);
  float made = reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
  for (; d < dims; ++d) made += visit(scalar_tag{}, d);
  return made;
}

template <codec Element>
inline void spreads(std::byte const* const* rows, std::byte const* const* ahead, int count, int dims, float const* low,
                    float const* inverse, float* z, float* out) {
  constexpr std::ptrdiff_t bytes = bytes_of(Element);
  for (int r = 0; r < count; ++r) {
    for (std::ptrdiff_t at = 0; at < dims * bytes; at += 64) prefetch_here(ahead[r] + at);
    std::byte const* const row = rows[r];
    float const mean = sum_of_channels(dims,
                                       [&](auto kind, int d) KVPOLICY_INLINED {
                                         auto const made =
                                             (load_elements<Element>(kind, row + d * bytes) - load(kind, low + d)) *
                                             load(kind, inverse + d);
                                         store(made, z + d);
                                         return made;
                                       }) /
                       static_cast<float>(dims);
    out[r] = sum_of_channels(dims, [&](auto kind, int d) KVPOLICY_INLINED {
      auto const apart = load(kind, z + d) - splat(kind, mean);
      return apart * apart;
    });
  }
}

/// All numbers are in whole vectors, so that equal ones have equal powers. Behind the last one they are of no effect.
inline float powers(float* of, int count) {
  floats sum{};
  int i = 0;
  for (; i + width <= count; i += width) {
    floats const made = exp_of_negative(load(of + i));
    store(made, of + i);
    sum = sum + made;
  }
  if (i < count) {
    float rest[width];
    for (int k = 0; k < width; ++k) rest[k] = i + k < count ? of[i + k] : -100.0f;
    floats const made = exp_of_negative(load(rest));
    store(made, rest);
    sum = sum + made;
    for (int k = 0; i + k < count; ++k) of[i + k] = rest[k];
  }
  return reduce_add(sum);
}

inline constexpr spread_kernels spread{spreads<codec::f32>, spreads<codec::f16>, spreads<codec::bf16>, powers};
