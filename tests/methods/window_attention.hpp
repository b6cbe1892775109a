// SPDX-License-Identifier: Apache-2.0
// The attention of the last rows, of all entries: what Neural Garbage Collection scores blocks by.
#pragma once

#include "reference/methods.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct window_attention {
  using scorer = kv::window_attention;
  static constexpr auto header = "window_attention.hpp";
  static constexpr refusal refusals[] = {
      {"window_attention(window=0)", "parse: column 1: window_attention.window = 0, but at least one row observes"},
      {"window_attention(group=last)",
       "parse: column 1: window_attention.group = last, but query heads have no order"}};

  static scorer any() {
    return {.window = *rc::gen::element(1, 2, 5, 100),
            .group = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max)};
  }
  static int last(scorer const&) { return 0; }
  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    reference::lane_attention some = lane.attention();
    auto const rows = static_cast<int>(some.query_positions.size());
    int const gone = std::max(0, rows - with.window);
    some.query_positions.erase(some.query_positions.begin(), some.query_positions.begin() + gone);
    for (auto& head : some.queries) head.erase(head.begin(), head.begin() + gone);
    return reference::attention_mass(
        some, {.rows = reference::reduction::mean, .group = static_cast<reference::reduction>(with.group)});
  }

  /// Two rows, of which the older one does not see the last entry.
  static void worked() {
    reference::row const found = scores({.window = 2}, [] {
      told_of_lane lane;
      lane.positions = {0, 1};
      lane.keys = {{0, 0, 0, 0}, {0, 0, 0, 0}};
      for (auto& head : lane.queries) head = {{1, 0, 0, 0}, {1, 0, 0, 0}};
      return lane;
    }());
    CHECK(found[0] == doctest::Approx(0.75));
    CHECK(found[1] == doctest::Approx(0.25));
  }
};

}  // namespace kvpolicy_test::methods
