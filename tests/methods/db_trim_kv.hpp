// SPDX-License-Identifier: Apache-2.0
// DBTrimKV: retention summed over the next steps.
#pragma once

#include <cmath>

#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct db_trim_kv {
  using scorer = kv::db_trim_kv;
  static constexpr auto header = "db_trim_kv.hpp";
  static constexpr refusal refusals[] = {
      {"db_trim_kv(steps=0)",
       "parse: column 1: db_trim_kv.steps = 0, but retention is looked at over at least one step"},
      {"db_trim_kv(buffer=0)", "parse: column 1: db_trim_kv.buffer = 0, but at the budget nothing moves"},
      {"db_trim_kv(window=-1)", "parse: column 1: db_trim_kv.window = -1, but a count cannot be negative"}};

  static scorer any() {
    return {.steps = *rc::gen::element(1, 2, 3, 16, 1024), .buffer = 1, .window = *rc::gen::element(0, 0, 1, 5)};
  }
  static int last(scorer const& score) { return score.window; }

  /// The sum itself, from its smallest term on, relative to its greatest.
  static reference::row scores(scorer const& score, told_of_lane const& lane) {
    reference::row made;
    for (std::size_t e = 0; e < lane.positions.size(); ++e) {
      double const x = lane.log_beta[e];
      double sum = 0;
      for (int k = score.steps; k >= 1; --k) sum += std::exp((k - 1) * x);
      made.push_back((lane.positions.back() + 1 - lane.positions[e]) * x + std::log(sum));
    }
    return made;
  }

  /// Betas 1/2 and 1 - 1/8 of positions 0 and 1, two steps from position 1 on: log(1/4 + 1/8) and log(7/8 + 49/64). By
  /// one step they are trim_kv's with an age offset of 1.
  static void worked() {
    told_of_lane lane;
    lane.positions = {0, 1};
    lane.log_beta = {std::log(0.5), std::log(0.875)};
    reference::row const two = scores({.steps = 2}, lane), one = scores({}, lane);
    CHECK(two[0] == doctest::Approx(std::log(0.375)));
    CHECK(two[1] == doctest::Approx(std::log(1.640625)));
    CHECK(one[0] == doctest::Approx(2 * std::log(0.5)));
    CHECK(one[1] == doctest::Approx(std::log(0.875)));
    CHECK(kv::to_string(kv::parse("db_trim_kv | budget(9)")) ==
          "db_trim_kv(steps=1, buffer=1, window=0) | budget(9, scope=global)");
    kv::db_trim_kv::over_steps const ahead{.log_beta = {}, .lanes = {}, .steps = 512};
    CHECK(ahead.of_sum(-0.0f) == doctest::Approx(std::log(512)));  // a beta of 1
    CHECK(ahead.of_sum(-1e-30f) == doctest::Approx(std::log(512)));
    CHECK(ahead.of_sum(-100.0f) == 0);
  }
};

}  // namespace kvpolicy_test::methods
