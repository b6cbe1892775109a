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

/// A row of `Vectors` whole vectors, whose z stays in registers.
template <codec Element, int Vectors>
KVPOLICY_OP float spread_of_vectors(std::byte const* row, float const* low, float const* inverse) {
  constexpr std::ptrdiff_t bytes = bytes_of(Element);
  floats z[static_cast<std::size_t>(Vectors)], sum[2]{floats{}, floats{}}, squares[2]{floats{}, floats{}};
  unrolled<Vectors>([&](auto i) KVPOLICY_INLINED {
    z[i] = (load_elements<Element>(vector_tag{}, row + i * width * bytes) - load(low + i * width)) *
           load(inverse + i * width);
    sum[i % 2] = sum[i % 2] + z[i];
  });
  floats const mean = splat(reduce_add(sum[0] + sum[1]) * (1.0f / (Vectors * width)));
  unrolled<Vectors>([&](auto i) KVPOLICY_INLINED { squares[i % 2] = add_square(z[i] - mean, squares[i % 2]); });
  return reduce_add(squares[0] + squares[1]);
}

/// Any row, whose z are stored.
template <codec Element>
KVPOLICY_OP float spread_of_row(std::byte const* row, int dims, float const* low, float const* inverse, float* z) {
  float const sum = sum_of_channels(dims, [&](auto kind, int d) KVPOLICY_INLINED {
    auto const made =
        (load_elements<Element>(kind, row + d * std::ptrdiff_t{bytes_of(Element)}) - load(kind, low + d)) *
        load(kind, inverse + d);
    store(made, z + d);
    return made;
  });
  float const mean = sum / static_cast<float>(dims);
  return sum_of_channels(dims, [&](auto kind, int d) KVPOLICY_INLINED {
    auto const apart = load(kind, z + d) - splat(kind, mean);
    return apart * apart;
  });
}

template <codec Element>
inline void spreads(std::byte const* const* rows, std::byte const* const* ahead, int count, int dims, float const* low,
                    float const* inverse, float* z, float* out) {
  for (int r = 0; r < count; ++r) {
    for (std::ptrdiff_t at = 0; at < dims * std::ptrdiff_t{bytes_of(Element)}; at += 64) prefetch_here(ahead[r] + at);
    if (dims == 8 * width) {
      out[r] = spread_of_vectors<Element, 8>(rows[r], low, inverse);
    } else if (dims == 4 * width) {
      out[r] = spread_of_vectors<Element, 4>(rows[r], low, inverse);
    } else {
      out[r] = spread_of_row<Element>(rows[r], dims, low, inverse, z);
    }
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
