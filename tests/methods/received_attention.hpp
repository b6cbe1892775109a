// SPDX-License-Identifier: Apache-2.0
// The attention that entries have received, in sum or for each position since their own.
#pragma once

#include "reference/methods.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct received_attention {
  using scorer = kv::received_attention;
  static constexpr auto header = "received_attention.hpp";
  static constexpr refusal refusals[] = {
      {"received_attention(group=last)",
       "parse: column 1: received_attention.group = last, but query heads have no order"},
      {"keys_values(grace=-1)", "parse: column 1: keys_values.grace = -1, but a count cannot be negative"}};

  static scorer any() {
    return {.by_age = any_bool(),
            .group = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max)};
  }
  static int last(scorer const&) { return 0; }
  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    auto const group = static_cast<reference::reduction>(with.group);
    return reference::received(reference::rows_of_group(lane.attention(), group), {}, lane.positions, with.by_age);
  }

  static void worked() {
    reference::matrix const rows{{1, 0, 0}, {0.5, 0.5, 0}, {0.25, 0.25, 0.5}};
    reference::row const sum = reference::received(rows, {}, {0, 2, 4}, false);
    reference::row const by_age = reference::received(rows, {}, {0, 2, 4}, true);
    reference::row const shared = reference::received(rows, {1, 3, 0}, {0, 2, 4}, false);
    double const sums[] = {1.75, 0.75, 0.5}, ages[] = {0.35, 0.25, 0.5}, shares[] = {1.5, 1.5, 0};
    for (std::size_t e = 0; e < 3; ++e) {
      CHECK(sum[e] == doctest::Approx(sums[e]));
      CHECK(by_age[e] == doctest::Approx(ages[e]));
      CHECK(shared[e] == doctest::Approx(shares[e]));
    }
    CHECK(kv::to_string(kv::parse("keys_values(grace=4, values=true) | budget(9)")) ==
          "received_by_value(by_age=false, group=sum) | recent(4) | budget(9)");
  }
};

}  // namespace kvpolicy_test::methods
