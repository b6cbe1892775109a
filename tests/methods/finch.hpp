// SPDX-License-Identifier: Apache-2.0
// FINCH: the attention of the last rows, times how many entries each row sees.
#pragma once

#include "reference/methods.hpp"
#include "support/masses.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct finch {
  using scorer = kv::finch;
  static constexpr auto header = "finch.hpp";
  static constexpr refusal refusals[] = {
      {"finch(window=0)", "parse: column 1: finch.window = 0, but at least one row observes"},
      {"finch(group=last)", "parse: column 1: finch.group = last, but query heads have no order"}};
  static constexpr double size = 64;

  static scorer any() {
    return {.window = *rc::gen::element(1, 2, 7, 100),
            .counts = *rc::gen::element(kv::seen_entries::exact, kv::seen_entries::kvpress),
            .group = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max)};
  }
  static int last(scorer const& with) { return with.window; }
  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    reference::lane_attention const some = lane.attention();
    std::size_t const entries = some.keys.size();
    std::size_t const rows = std::min(entries, as_size(with.window));
    std::vector<reference::matrix> weights = reference::attention_weights(some, {});
    for (reference::matrix& head : weights) {
      head.erase(head.begin(), head.end() - static_cast<std::ptrdiff_t>(rows));
      for (std::size_t r = 0; r < rows; ++r) head[r] = times(head[r], seen(with, entries, rows, r));
    }
    return reference::reduced_weights(
        weights, {.rows = reference::reduction::mean, .group = static_cast<reference::reduction>(with.group)}, entries);
  }
  static double seen(scorer const& with, std::size_t entries, std::size_t rows, std::size_t r) {
    return static_cast<double>(entries - rows + r + 1) - (with.counts == kv::seen_entries::kvpress ? 1 : 0);
  }
  static reference::row times(reference::row of, double factor) {
    for (double& each : of) each *= factor;
    return of;
  }

  /// Rows that see three and four entries.
  static void worked() {
    double const p[2][4] = {{0.5, 0.3, 0.2, 0}, {0.4, 0.3, 0.2, 0.1}};
    double const expected[] = {3.1 / 2, 2.1 / 2, 1.4 / 2, 0.4 / 2};
    for (int j = 0; j < 4; ++j) {
      double const made = (seen({}, 4, 2, 0) * p[0][j] + seen({}, 4, 2, 1) * p[1][j]) / 2;
      CHECK(made == doctest::Approx(expected[j]));
    }
  }
};

}  // namespace kvpolicy_test::methods
