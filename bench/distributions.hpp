// SPDX-License-Identifier: Apache-2.0
// Distributions of scores: those that policies produce, and those that are hard for a selection.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "floors.hpp"

namespace bench {

/// Pseudo-random numbers by xorshift, which is fast enough for hundreds of megabytes.
class noise {
 public:
  explicit noise(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x2545F4914F6CDD1Du) {}
  std::uint32_t bits() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<std::uint32_t>(state_ >> 32);
  }
  /// A number in [0, 1).
  float uniform() { return static_cast<float>(bits() >> 8) * 0x1p-24f; }
  /// Mean 0, standard deviation 1: the sum of four uniform numbers.
  float normal() { return (uniform() + uniform() + uniform() + uniform() - 2.0f) * 1.7320508f; }
  int below(int limit) { return static_cast<int>((std::uint64_t{bits()} * static_cast<std::uint64_t>(limit)) >> 32); }

 private:
  std::uint64_t state_;
};

enum class scores_like {
  normal,
  sharp_softmax,
  flat_softmax,
  relu_quantised,
  ties_64,
  all_equal,
  sorted,
  reverse,
  nan_1_percent,
  inf_90_percent
};

inline constexpr std::array<char const*, 10> distribution_names{
    "normal",    "sharp_softmax", "flat_softmax", "relu_quantised", "ties_64",
    "all_equal", "sorted",        "reverse",      "nan_1_percent",  "inf_90_percent"};
inline char const* name_of(scores_like like) { return distribution_names[static_cast<std::size_t>(like)]; }

/// Fills one lane. A softmax is exp of normal logits over its sum: standard deviation 4 is sharp, 0.25 flat.
inline void fill_lane(std::span<float> lane, scores_like like, noise& from) {
  float const missing = std::numeric_limits<float>::quiet_NaN();
  float const lowest = -std::numeric_limits<float>::infinity();
  float sum = 0;
  for (float& to : lane) {
    float const x = from.normal();
    switch (like) {
      case scores_like::sharp_softmax:
        sum += to = std::exp(4 * x);
        break;
      case scores_like::flat_softmax:
        sum += to = std::exp(x / 4);
        break;
      case scores_like::relu_quantised:
        to = std::round(std::max(0.0f, x) * 64) / 64;
        break;
      case scores_like::ties_64:
        to = static_cast<float>(from.below(64));
        break;
      case scores_like::all_equal:
        to = 0.5f;
        break;
      case scores_like::nan_1_percent:
        to = from.below(100) == 0 ? missing : x;
        break;
      case scores_like::inf_90_percent:
        to = from.below(10) != 0 ? lowest : x;
        break;
      default:
        to = x;
    }
  }
  if (sum > 0) {
    for (float& to : lane) to /= sum;
  }
  if (like == scores_like::sorted) std::sort(lane.begin(), lane.end());
  if (like == scores_like::reverse) std::sort(lane.begin(), lane.end(), std::greater<>{});
}

/// Fills `lanes` rows of `entries` scores. A few dozen are drawn, and the others are rotations of these, so that no two
/// rows are equal. Sorted rows stay sorted.
inline void fill_scores(memory const& to, int lanes, int entries, scores_like like) {
  noise from(7);
  auto const width = static_cast<std::size_t>(entries);
  bool const turns = like != scores_like::sorted && like != scores_like::reverse;
  int const drawn = std::min(lanes, 48);
  for (int lane = 0; lane < lanes; ++lane) {
    float* const row = to.as<float>() + static_cast<std::size_t>(lane) * width;
    if (lane < drawn) {
      fill_lane({row, width}, like, from);
      continue;
    }
    float const* const source = to.as<float>() + static_cast<std::size_t>(lane % drawn) * width;
    auto const first = turns ? static_cast<std::size_t>(from.below(entries)) : 0;
    std::copy(source + first, source + width, row);
    std::copy(source, source + first, row + (width - first));
  }
}

}  // namespace bench
