// SPDX-License-Identifier: Apache-2.0
// AdaEA's score: by how much an expected logit is above the threshold of its query head.
#pragma once

#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct expected_margin {
  using scorer = kv::expected_margin;
  static constexpr double size = 100;
  static constexpr auto header = "expected_margin.hpp";
  static constexpr refusal refusals[] = {
      {"expected_margin",
       "parse: column 1 = expected_margin, but its table is thresholds, and a table is given to the registry by its "
       "name"},
      {"expected_margin(true, of_mine)",
       "parse: column 23 = of_mine, but a table is given to the registry by its name"},
      {"expected_margin(table=of_mine)",
       "parse: column 17 = table, but expected_margin has the fields covariance and thresholds"}};

  static inline float const numbers[told_lanes::lanes][told_lanes::group] = {{1, -2}, {0, 0.5f}, {-3, 2}, {10, 8}};
  static kv::rows_of_heads thresholds() {
    return {{numbers[0], 0, std::int64_t{2} * told_lanes::group, told_lanes::group}, told_lanes::group};
  }
  static kv::registry known() { return kv::shipped().table("thresholds", thresholds()); }

  static scorer any() { return {any_bool(), thresholds()}; }
  static int last(scorer const&) { return 0; }
  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    reference::row made;
    for (reference::row const& key : lane.keys) {
      double most = -reference::infinity;
      for (int h = 0; h < told_lanes::group; ++h) {
        double const x = reference::expected_logit(told_lanes::moments(lane.number, h), key, 0.5, with.covariance);
        most = std::max(most, x - static_cast<double>(numbers[lane.number][h]));
      }
      made.push_back(most);
    }
    return made;
  }

  static void worked() {
    kv::shape const model{2, 8, 2, 4};
    CHECK(error_of([&] { scorer{true, thresholds()}.check("decide", model); }) ==
          "decide: expected_margin.thresholds.dims = 2, but a KV head has 4 query heads");
    CHECK(error_of([&] { scorer{}.check("decide", model); }) ==
          "decide: expected_margin.thresholds = null, but each query head has one");
  }
};

}  // namespace kvpolicy_test::methods
