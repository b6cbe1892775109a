// SPDX-License-Identifier: Apache-2.0
// Rotation of a key's halves: kernels/rope.hpp says what it promises.

/// Rotates (x, y) by the angle with this cosine and sine.
template <class Number>
KVPOLICY_OP void rotate_pairs(Number& x, Number& y, Number cosine, Number sine) {
  Number const rotated = mul_rounded(x, cosine) - mul_rounded(y, sine);
  y = mul_rounded(y, cosine) + mul_rounded(x, sine);
  x = rotated;
}

template <codec Element>
inline void rotate_halves(std::byte* key, int pairs, float const* a, float const* b) {
  std::byte* const second = key + pairs * bytes_of(Element);
  for_each_vector(0, pairs, [&](auto kind, int i) KVPOLICY_INLINED {
    auto cosine = load(kind, a + i), sine = load(kind, a + pairs + i);
    rotate_pairs(cosine, sine, load(kind, b + i), load(kind, b + pairs + i));
    int const at = i * bytes_of(Element);
    auto x = load_elements<Element>(kind, key + at), y = load_elements<Element>(kind, second + at);
    rotate_pairs(x, y, cosine, sine);
    store_elements<Element>(x, key + at);
    store_elements<Element>(y, second + at);
  });
}

inline constexpr rope_kernels rope{rotate_halves<codec::f32>, rotate_halves<codec::f16>, rotate_halves<codec::bf16>};
