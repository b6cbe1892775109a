// SPDX-License-Identifier: Apache-2.0
// Leverage: how far keys before RoPE lie in directions that few of them have, as z-scores of a layer.
#pragma once

#include "reference/leverage.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

/// The leverages of some entries' keys, [lane of the layer][entry].
inline reference::matrix leverages_of_layer(std::vector<told_of_lane> const& told, std::size_t which, int columns,
                                            std::uint64_t seed, double jitter, std::size_t first, std::size_t last) {
  reference::matrix made;
  for (std::size_t s = which / 2 * 2; s < which / 2 * 2 + 2; ++s) {
    reference::matrix const& all = told[s].unturned();
    reference::matrix rows;
    for (std::size_t e = first; e + last < all.size(); ++e) rows.push_back(all[e]);
    rows = reference::centred(rows, reference::row(rows.size(), 1));
    if (columns > 0) {
      rows = reference::product(rows, reference::drawn_sketch(seed, static_cast<int>(s / 2), static_cast<int>(s % 2),
                                                              told_lanes::dims, as_size(columns)));
    }
    made.push_back(reference::weighted_leverages(rows, reference::row(rows.size(), 1), 0, jitter));
  }
  return made;
}
/// True if numbers are so nearly equal that rounding decides their z-scores.
inline bool nearly_equal(reference::matrix const& of) {
  double low = reference::infinity, high = -reference::infinity;
  for (reference::row const& one : of) {
    for (double const x : one) low = std::min(low, x), high = std::max(high, x);
  }
  return high - low < 0.05 * std::fabs(high) || high - low < 1e-3;
}

struct leverage {
  using scorer = kv::leverage;
  static constexpr auto header = "leverage.hpp";
  static constexpr double size = 20;
  static constexpr refusal refusals[] = {
      {"leverage(sketch=-1)",
       "parse: column 1: leverage.sketch = -1, but a sketch has 0 to 65536 columns; 0: keys stay as they are"},
      {"leverage(jitter=-0.5)", "parse: column 1: leverage.jitter = -0.5, but a finite number above 0"},
      {"leverage(jitter=inf)", "parse: column 17 = inf, but leverage's jitter is a number"}};

  static scorer any() {
    return {.sketch = *rc::gen::element(0, 1, 3, 4, 48),
            .seed = *rc::gen::element<std::uint64_t>(42, 0, 7),
            .jitter = *rc::gen::element(0.01, 1.0)};
  }
  static int last(scorer const&) { return 0; }
  static reference::row scores(scorer const& with, std::vector<told_of_lane> const& told, std::size_t which) {
    reference::matrix const made = leverages_of_layer(told, which, with.sketch, with.seed, with.jitter, 0, 0);
    return nearly_equal(made) ? reference::row{} : reference::sample_z_scores(made)[which % 2];
  }

  /// Leverages 1/3, 1/3, 4/9, 4/9 of both lanes: their mean is 7/18, and each is 1/18 from it.
  static void worked() {
    std::vector<told_of_lane> told(2);
    told[0].values = told[1].values = {{1, 0}, {-1, 0}, {0, 2}, {0, -2}};
    reference::row const made = scores({.sketch = 0, .jitter = 1}, told, 1);
    for (std::size_t e = 0; e < 4; ++e)
      CHECK(made[e] == doctest::Approx(e < 2 ? -std::sqrt(7 / 8.0) : std::sqrt(7 / 8.0)));
  }
};

}  // namespace kvpolicy_test::methods
