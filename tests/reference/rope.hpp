// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "basics.hpp"

namespace kvpolicy_reference {

/// Which two channels turn together: i and i + D/2 (NeoX halves), or 2i and 2i + 1 (GPT-J pairs).
enum class rope_pairing { halves, pairs };

struct rope {
  double theta = 10000.0;
  rope_pairing pairing = rope_pairing::halves;
  row frequency{};  ///< radians per position of each pair, instead of theta's; empty: theta's
};

/// The row turned by `positions` steps: pair i by the angle positions * frequency[i], or positions * theta^(-2i/D).
/// Turning by new - old moves a key that was already rotated; a negative count turns back.
inline row rotated(row const& input, int positions, rope const& how) {
  require(input.size() % 2 == 0, "RoPE turns pairs of channels");
  std::size_t const pairs = input.size() / 2;
  require(how.frequency.empty() || how.frequency.size() == pairs, "each pair has a frequency");
  row result = input;
  for (std::size_t i = 0; i < pairs; ++i) {
    std::size_t const first = how.pairing == rope_pairing::halves ? i : 2 * i;
    std::size_t const second = how.pairing == rope_pairing::halves ? i + pairs : 2 * i + 1;
    double const frequency =
        how.frequency.empty() ? std::pow(how.theta, -2.0 * static_cast<double>(i) / static_cast<double>(input.size()))
                              : how.frequency[i];
    double const angle = positions * frequency;
    result[first] = input[first] * std::cos(angle) - input[second] * std::sin(angle);
    result[second] = input[second] * std::cos(angle) + input[first] * std::sin(angle);
  }
  return result;
}

}  // namespace kvpolicy_reference
