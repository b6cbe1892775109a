// SPDX-License-Identifier: Apache-2.0
// Uniform numbers that are a hash of what they belong to, so that they are the same on every backend.
#pragma once

#include <cstdint>
#include <kvpolicy/core/lanes.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The finaliser of SplitMix64: flipping an input bit flips each output bit with a probability near one half.
[[nodiscard]] KVPOLICY_HD constexpr std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// The uniform numbers of one lane, in [0, 1): a hash of (seed, request, layer, head, place).
struct seeded_lane {
  std::uint64_t state;

  [[nodiscard]] KVPOLICY_HD static constexpr seeded_lane of(std::uint64_t seed, std::uint64_t request, lane one) {
    std::uint64_t x = mixed(mixed(seed) ^ request);
    x = mixed(x ^ static_cast<std::uint64_t>(one.layer));
    return {mixed(x ^ static_cast<std::uint64_t>(one.head))};
  }
  [[nodiscard]] KVPOLICY_HD constexpr float at(std::uint64_t place) const {
    return static_cast<float>(mixed(state ^ place) >> 40) * 5.9604644775390625e-8f;  // 24 bits, times 2^-24
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
