// SPDX-License-Identifier: Apache-2.0
// Ranks of a few numbers: kernels/ranks.hpp says what they promise.

/// Vectors before that of a number are compared by `<`, and those behind it by `<=`.
inline void count_worse(float const* of, int count, int* to) {
  for (int own = 0; own < count; own += width) {
    for (int e = own; e < own + width && e < count; ++e) {
      floats const mine = splat(of[e]);
      int worse = 0;
      for (int i = 0; i < own; i += width) worse += count_bits(vector_tag{}, bits_of(load(of + i) < mine));
      unsigned const behind = ~0u << (e - own);
      floats const beside = load(of + own);
      worse += count_bits(vector_tag{}, bits_of(beside < mine) | (bits_of(beside == mine) & (behind << 1)));
      for (int i = own + width; i < count; i += width) {
        worse += count_bits(vector_tag{}, bits_of(load(of + i) <= mine));
      }
      to[e] = worse;
    }
  }
}

inline constexpr ranks_kernels ranks{has_integers ? count_worse : nullptr};
