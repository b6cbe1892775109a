// SPDX-License-Identifier: Apache-2.0
// CurDKV: approximate leverages of keys and values among neighbours.
#pragma once

#include "reference/methods.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct cur {
  using scorer = kv::cur;
  static constexpr auto header = "cur.hpp";
  static constexpr refusal refusals[] = {
      {"cur(sinks=-1)", "parse: column 1: cur.sinks = -1, but a count cannot be negative"},
      {"cur(block=-1)", "parse: column 1: cur.block = -1, but a count cannot be negative; 0 is no blocks"},
      {"cur(of=keys)", "parse: column 8 = keys, but cur's of is product, key, value or mean"}};

  static scorer any() {
    return {.sinks = *rc::gen::element(0, 1, 4),
            .block = *rc::gen::element(0, 1, 3, 16, 100),
            .of = *rc::gen::element(kv::leverage_of::product, kv::leverage_of::key, kv::leverage_of::value,
                                    kv::leverage_of::mean)};
  }
  static int last(scorer const&) { return 0; }
  static bool forces(scorer const& with, told_of_lane const& lane, int e) {
    return lane.positions[as_size(e)] < with.sinks;
  }
  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    reference::row const a = reference::leverages(lane.keys, as_size(with.block));
    reference::row const b = reference::leverages(lane.values, as_size(with.block));
    reference::row made;
    double sum = 0;
    for (std::size_t e = 0; e < a.size(); ++e) {
      made.push_back(with.of == kv::leverage_of::key     ? a[e]
                     : with.of == kv::leverage_of::value ? b[e]
                     : with.of == kv::leverage_of::mean  ? (a[e] + b[e]) / 2
                                                         : a[e] * b[e]);
      sum += made.back();
    }
    for (double& each : made) each = sum > 0 ? each / sum : 0;
    return made;
  }

  /// Leverages of keys (1/5, 4/5), (1), of values (1/2, 1/2), (1).
  static void worked() {
    told_of_lane lane;
    lane.keys = {{1, 0}, {0, 2}, {3, 0}};
    lane.values = {{1, 1}, {1, -1}, {0, 2}};
    reference::row const product = scores({.block = 2}, lane);
    double const expected[] = {1 / 15.0, 4 / 15.0, 10 / 15.0};
    for (std::size_t e = 0; e < 3; ++e) CHECK(product[e] == doctest::Approx(expected[e]));
    reference::row const whole = scores({.block = 0, .of = kv::leverage_of::key}, lane);
    for (std::size_t e = 0; e < 3; ++e) CHECK(whole[e] == doctest::Approx(reference::row{1, 4, 9}[e] / 14));
    lane.keys[0] = lane.keys[1] = {0, 0};
    CHECK(scores({.block = 2}, lane) == reference::row{0, 0, 1});
  }
};

}  // namespace kvpolicy_test::methods
