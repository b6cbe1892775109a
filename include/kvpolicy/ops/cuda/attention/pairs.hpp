// SPDX-License-Identifier: Apache-2.0
// Pairs of 16-bit numbers in a register, and floats as sums of two such numbers.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/cuda/moves/rows.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Two floats as the nearest numbers of 16 bits, in one register: the first is in the lower half.
template <codec Element>
[[nodiscard]] KVPOLICY_HD inline std::uint32_t nearest_pair(float first, float second) {
#if defined(__CUDA_ARCH__)
  std::uint32_t pair = 0;
  if constexpr (Element == codec::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
#else
  auto const nearest = [](float of) -> std::uint32_t { return Element == codec::bf16 ? to_bf16(of) : to_f16(of); };
  return nearest(first) | nearest(second) << 16;
#endif
}

/// Four floats that are loaded and stored as one vector.
struct alignas(16) four_floats {
  float of[4];
};
/// Two pairs of 16-bit numbers.
struct two_pairs {
  std::uint32_t of[2];
};
/// Four floats as the nearest numbers of 16 bits, and what is left of them.
struct four_parts {
  two_pairs high;
  two_pairs rest;
};
/// With `Keeps`, a float that is not 0 has a first number that is not 0 either, so that an infinite number times it is
/// infinite.
template <codec Element, bool Keeps>
[[nodiscard]] KVPOLICY_HD inline four_parts split_four(four_floats const& numbers) {
  four_parts made;
  for (int k = 0; k < 2; ++k) {
    float const first = numbers.of[2 * k], second = numbers.of[2 * k + 1];
    std::uint32_t high = nearest_pair<Element>(first, second);
    if (Keeps && first != 0 && (high & 0x7FFFu) == 0) high |= 1u;
    if (Keeps && second != 0 && (high & 0x7FFF0000u) == 0) high |= 0x10000u;
    made.high.of[k] = high;
    two_numbers const kept = halves_of(Element, high);
    made.rest.of[k] = nearest_pair<Element>(first - kept.first, second - kept.second);
  }
  return made;
}
/// Not 0 if a number of f16 is infinite or NaN: its exponent and 1 are beyond its place.
[[nodiscard]] KVPOLICY_HD inline std::uint32_t beyond_f16(two_pairs const& of) {
  std::uint32_t const first = (of.of[0] & 0x7C007C00u) + 0x04000400u;
  std::uint32_t const second = (of.of[1] & 0x7C007C00u) + 0x04000400u;
  return (first | second) & 0x80008000u;
}

}  // namespace KVPOLICY_NAMESPACE::detail
