// SPDX-License-Identifier: Apache-2.0
// The intervals of the demo's table, which are those of the agent replay.

#include <agent_replay/metrics.hpp>

#include "support/test.hpp"

namespace {

using agent_replay::share;

TEST_SUITE("demo/interval") {
  TEST_CASE("the 95 % intervals are those of Wilson's formula") {
    auto const percent = [](int right, int of) {
      share const one{right, of};
      return std::pair{100 * one.low(), 100 * one.high()};
    };
    // From the formula with z = 1.959964, in exact arithmetic, to a tenth of a percent.
    auto const near = [](std::pair<double, double> of, double low, double high) {
      CHECK(of.first == doctest::Approx(low).epsilon(0.0005).scale(100));
      CHECK(of.second == doctest::Approx(high).epsilon(0.0005).scale(100));
    };
    near(percent(79, 80), 93.25, 99.78);
    near(percent(80, 80), 95.42, 100);
    near(percent(0, 80), 0, 4.58);
    near(percent(40, 40), 91.24, 100);
    near(percent(39, 40), 87.12, 99.56);
    near(percent(20, 40), 35.20, 64.80);
  }
}

}  // namespace
