// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <rapidcheck.h>

#include <bit>

#include "reference/basics.hpp"
#include "support/dice.hpp"

namespace kvpolicy_test {

/// Scores that hurt: few distinct values with NaN, both zeros and both infinities; neighbours in the last bits;
/// anything.
enum class trouble { ties, last_bits, anything };

inline float troubled_score(dice& random, trouble what) {
  constexpr float infinite = std::numeric_limits<float>::infinity();
  constexpr float nothing = std::numeric_limits<float>::quiet_NaN();
  if (what == trouble::ties) {
    return random.one_of<float>({nothing, -nothing, -infinite, infinite, -0.0f, 0.0f, 1.0f, -1.0f, 1.0f, 1e-42f});
  }
  auto const bits =
      static_cast<std::uint32_t>(random.below(1 << 30)) * 4u + static_cast<std::uint32_t>(random.below(4));
  if (what == trouble::last_bits)
    return (random.chance(50) ? 1.0f : -1.0f) * std::bit_cast<float>(0x3F800000u + bits % 5u);
  return std::bit_cast<float>(bits);
}

inline trouble any_trouble() { return *rc::gen::element(trouble::ties, trouble::last_bits, trouble::anything); }

template <class Floats>
kvpolicy_reference::row as_row(Floats const& floats) {
  kvpolicy_reference::row result;
  for (float const each : floats) result.push_back(static_cast<double>(each));
  return result;
}

}  // namespace kvpolicy_test
