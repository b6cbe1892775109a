// SPDX-License-Identifier: Apache-2.0
// Chooses a byte from logits, and computes the bits that a byte costs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace tinylm {

/// How the next byte is chosen. Temperature 0 is greedy: it takes the most probable byte, of equal ones the lowest.
struct sampling {
  float temperature = 0;
  std::uint64_t seed = 1;
  int stop = -1;  ///< generation ends after this byte; -1: no byte ends it
};

/// -log2 of the probability of `byte`.
[[nodiscard]] inline double bits_of(std::span<float const> logits, std::uint8_t byte) {
  float const highest = *std::max_element(logits.begin(), logits.end());
  double const sum = std::accumulate(logits.begin(), logits.end(), 0.0, [&](double all, float one) {
    return all + std::exp(static_cast<double>(one - highest));
  });
  return (std::log(sum) - static_cast<double>(logits[byte] - highest)) / std::log(2.0);
}

[[nodiscard]] inline std::uint8_t choose(std::span<float const> logits, sampling const& how, std::mt19937_64& random) {
  auto const best = std::max_element(logits.begin(), logits.end());
  if (how.temperature <= 0) return static_cast<std::uint8_t>(best - logits.begin());
  std::vector<double> until;  // running sums of unnormalised probabilities
  double sum = 0;
  for (float const one : logits) until.push_back(sum += std::exp(static_cast<double>((one - *best) / how.temperature)));
  double const at = static_cast<double>(random() >> 11) * 0x1p-53 * sum;
  return static_cast<std::uint8_t>(std::min<std::ptrdiff_t>(
      std::upper_bound(until.begin(), until.end(), at) - until.begin(), std::ssize(logits) - 1));
}

}  // namespace tinylm
