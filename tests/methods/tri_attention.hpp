// SPDX-License-Identifier: Apache-2.0
// TriAttention: what the mean query of a head draws from a key later.
#pragma once

#include "reference/methods.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct tri_attention {
  using scorer = kv::tri_attention;
  static constexpr double size = 50;
  static constexpr auto header = "tri_attention.hpp";
  static constexpr refusal refusals[] = {
      {"tri_attention(offsets=0)",
       "parse: column 1: tri_attention.offsets = 0, but distances are 1, 2, 4, ..., at most 31 of them"},
      {"tri_attention(group=last)", "parse: column 1: tri_attention.group = last, but query heads have no order"}};

  static scorer any() {
    return {.aggregate = *rc::gen::element(kv::distance_mean::mean, kv::distance_mean::max),
            .normalise = *rc::gen::element(kv::head_scale::z, kv::head_scale::none),
            .group = *rc::gen::element(kv::reduction::max, kv::reduction::mean, kv::reduction::sum),
            .offsets = *rc::gen::element(1, 3, 17)};
  }
  static int last(scorer const&) { return 0; }
  /// Pairs turn by 1 and 0.1 a position, as in the worked numbers.
  static kv::rope turns(scorer const&) { return {.theta = 100}; }

  /// A key as it was before it was turned to a position.
  static reference::row before(reference::row key, double position, reference::row const& turns) {
    std::size_t const pairs = turns.size();
    for (std::size_t f = 0; f < pairs; ++f) {
      double const x = key[f], y = key[f + pairs], angle = -position * turns[f];
      key[f] = x * std::cos(angle) - y * std::sin(angle);
      key[f + pairs] = y * std::cos(angle) + x * std::sin(angle);
    }
    return key;
  }
  /// True if the scores that compete differ so little that rounding decides their z-scores.
  static bool nearly_equal(reference::row const& of, reference::flags const& forced) {
    double low = reference::infinity, high = -reference::infinity;
    for (std::size_t e = 0; e < of.size(); ++e) {
      if (!forced[e]) low = std::min(low, of[e]), high = std::max(high, of[e]);
    }
    return high - low < 0.1 * std::max(std::fabs(low), std::fabs(high));
  }
  static reference::row scores(scorer const& with, told_of_lane const& lane, reference::flags const& forced) {
    reference::matrix heads;
    for (int h = 0; h < told_lanes::group; ++h) {
      float const* const mean = told_lanes::query_mean[lane.number * told_lanes::group + h];
      float const* const radius = told_lanes::query_radius[lane.number * told_lanes::group + h];
      reference::tri_attention_head const head{{mean, mean + told_lanes::dims},
                                               {radius, radius + told_lanes::dims / 2},
                                               {1, 0.1},
                                               with.offsets,
                                               with.aggregate == kv::distance_mean::max};
      reference::row one;
      for (std::size_t e = 0; e < lane.keys.size(); ++e) {
        double const position = lane.positions[e];
        one.push_back(head.score(before(lane.keys[e], position, head.turns), position, lane.positions.back() + 1));
      }
      for (std::size_t e = 0; e < one.size(); ++e) one[e] = forced[e] ? -reference::infinity : one[e];
      if (with.normalise == kv::head_scale::z && nearly_equal(one, forced)) return {};
      heads.push_back(with.normalise == kv::head_scale::z ? reference::z_scores(one, forced) : one);
    }
    reference::row made = reference::reduced(heads, static_cast<reference::reduction>(with.group), lane.keys.size());
    for (std::size_t e = 0; e < made.size(); ++e) made[e] = forced[e] ? -reference::infinity : made[e];
    return made;
  }

  static void worked() {
    reference::tri_attention_head head{{1, -0.3, 0.5, 0.8}, {1.3, 1}, {1, 0.1}, 3, false};
    reference::matrix const keys{{1, 0.2, 0.3, -0.5}, {-0.4, 1, 0.6, 0.2}, {0.1, 0.1, -1.2, 0.9}};
    double const position[] = {2, 5, 9}, mean[] = {-0.276727, -0.210791, 1.033318},
                 most[] = {1.170128, 0.068795, 1.845519};
    double const z[] = {-0.761109, -0.651693, 1.412802};
    reference::row made;
    for (std::size_t e = 0; e < 3; ++e) {
      head.highest = false;
      made.push_back(head.score(keys[e], position[e], 10));
      CHECK(made[e] == doctest::Approx(mean[e]).epsilon(1e-5));
      head.highest = true;
      CHECK(head.score(keys[e], position[e], 10) == doctest::Approx(most[e]).epsilon(1e-5));
    }
    for (std::size_t e = 0; e < 3; ++e)
      CHECK(reference::z_scores(made, {0, 0, 0})[e] == doctest::Approx(z[e]).epsilon(1e-5));
  }
};

}  // namespace kvpolicy_test::methods
