// SPDX-License-Identifier: Apache-2.0
// The parts of the demo's cache policies, for a budget.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine.hpp"

namespace demo {

/// Divides a budget of entries for each lane among the parts of a composition. The context is in bytes.
struct portions {
  static constexpr int window = 16;  ///< the window in bytes with which the write gate was trained

  int budget;
  int context;

  /// The threshold with which a lane holds about the budget on average, its window included. It was measured for a few
  /// fractions of 1,024 bytes that contain facts. Between them it is interpolated linearly in logarithms.
  [[nodiscard]] float threshold() const {
    constexpr std::pair<float, float> measured[] = {{1.0f / 16, 0.0123f}, {1.0f / 8, 0.0033f}, {1.0f / 4, 0.0003f}};
    float const share = static_cast<float>(budget) / static_cast<float>(context);
    int const right = share > measured[1].first ? 2 : 1;
    auto const [low, above] = measured[right - 1];
    auto const [high, below] = measured[right];
    float const at = std::log(share / low) / std::log(high / low);
    return std::min(1.0f, above * std::pow(below / above, at));
  }

  [[nodiscard]] auto admit() const { return kv::policies::wg_kv({.window = window, .threshold = threshold()}); }
  [[nodiscard]] static auto read(int tokens) { return kv::policies::quest({.budget = tokens, .dense_layers = 0}); }
  [[nodiscard]] auto keep() const { return kv::policies::trim_kv({.budget = budget}); }

  /// In a composition a part gets three quarters of its budget. After a write gate lanes hold different numbers of
  /// entries, so they share the budget of the eviction, and a lane with many entries may read twice the budget, because
  /// most lanes hold less.
  [[nodiscard]] static int some(int tokens) { return std::max(1, tokens * 3 / 4); }
  [[nodiscard]] auto read_beside_window() const { return read(2 * budget); }
  [[nodiscard]] auto keep_beside_window() const {
    return kv::eviction{.score = kv::trim_kv{}, .budget = kv::per_sequence{some(budget - window)}};
  }
};

/// A contender of the `cache_policy` that `compose` makes of the parts. A part alone gets the whole budget, and less in
/// a composition.
template <class Compose>
contender composed(std::string name, bool gated, Compose compose) {
  return cache_contestant(std::move(name), gated,
                          [compose](int n, int context) { return compose(portions{n, context}); });
}

}  // namespace demo
