// SPDX-License-Identifier: Apache-2.0
// KeyDiff: keys that resemble the mean of unit keys go first.
#pragma once

#include "reference/methods.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct keydiff {
  using scorer = kv::keydiff;
  static constexpr auto header = "keydiff.hpp";
  static constexpr refusal refusals[] = {{"keydiff(window=1)", "parse: column 9 = window, but keydiff has no fields"}};

  static scorer any() { return {}; }
  static int last(scorer const&) { return 0; }
  static reference::row scores(scorer const&, told_of_lane const& lane) { return reference::keydiff_scores(lane.keys); }

  static void worked() {
    reference::row const made = reference::keydiff_scores({{1, 0}, {2, 0}, {0, 3}});
    CHECK(made[0] == doctest::Approx(-0.894427));
    CHECK(made[1] == doctest::Approx(-0.894427));
    CHECK(made[2] == doctest::Approx(-0.447214));
    CHECK(reference::keydiff_scores({{1, 0}, {0, 0}}) == reference::row{-1, 0});
    CHECK(reference::keydiff_scores({{1, 0}, {-1, 0}}) == reference::row{0, 0});
  }
};

}  // namespace kvpolicy_test::methods
