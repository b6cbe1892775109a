// SPDX-License-Identifier: Apache-2.0
// LazyEviction: how long an entry rests now, against the longest time that it has rested before.
#pragma once

#include "reference/methods.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct lazy_eviction {
  using scorer = kv::lazy_eviction;
  static constexpr auto header = "lazy_eviction.hpp";
  static constexpr refusal refusals[] = {
      {"lazy_eviction(alpha=2)",
       "parse: column 1: lazy_eviction.alpha = 2, but it is a part of a row's attention, 0 to 1"},
      {"lazy_eviction(window=0)", "parse: column 1: lazy_eviction.window = 0, but an interval is 1 or more"}};

  /// No attention to keys of whole numbers is as close to these parts as rounding errors are.
  static scorer any() {
    return {.alpha = *rc::gen::element(0.01373f, 0.21391f, 0.0f),
            .window = *rc::gen::inRange(1, 9),
            .combine = *rc::gen::element(kv::joined_terms::product, kv::joined_terms::sum),
            .group = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max)};
  }
  static int last(scorer const& with) { return with.window; }
  static bool decides(scorer const& with, told_of_lane const& lane) {
    return (lane.positions.back() + 1) % with.window == 0;
  }
  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    auto const group = static_cast<reference::reduction>(with.group);
    reference::stamped made(lane.positions);
    reference::matrix const rows = reference::rows_of_group(lane.attention(), group);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      made.see({rows[i].begin(), rows[i].begin() + static_cast<std::ptrdiff_t>(i) + 1}, lane.positions[i],
               static_cast<double>(with.alpha));
    }
    return made.scores(lane.positions.back(), with.combine == kv::joined_terms::product);
  }

  static void worked() {
    reference::stamped made({0, 1, 2});
    reference::matrix const rows{{0.5, 0.05, 0.2}, {0.05, 0.05, 0.3}, {0.2, 0.05, 0.02}, {0.01, 0.4, 0.05}};
    for (std::size_t i = 0; i < rows.size(); ++i) made.see(rows[i], 3 + static_cast<int>(i), 0.1);
    CHECK(made.last == std::vector<int>{5, 6, 4});
    CHECK(made.interval == std::vector<int>{3, 5, 1});
    double const product[] = {0.696991, 0.900332, 0.128234}, sum[] = {1.669719, 1.900332, 0.776289};
    for (std::size_t e = 0; e < 3; ++e) {
      CHECK(made.scores(6, true)[e] == doctest::Approx(product[e]).epsilon(1e-5));
      CHECK(made.scores(6, false)[e] == doctest::Approx(sum[e]).epsilon(1e-5));
    }
  }
};

}  // namespace kvpolicy_test::methods
