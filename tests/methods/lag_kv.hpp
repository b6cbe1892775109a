// SPDX-License-Identifier: Apache-2.0
// LagKV: how unevenly channels lie in the range of the next block.
#pragma once

#include "reference/methods.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct lag_kv {
  using scorer = kv::lag_kv;
  static constexpr auto header = "lag_kv.hpp";
  static constexpr double size = 20;
  static constexpr refusal refusals[] = {
      {"lag_kv(lag=0)", "parse: column 1: lag_kv.lag = 0, but a block has 1 to 4096 entries"},
      {"lag_kv(lag=4097)", "parse: column 1: lag_kv.lag = 4097, but a block has 1 to 4096 entries"},
      {"lag_kv(sinks=-1)", "parse: column 1: lag_kv.sinks = -1, but a count cannot be negative"}};

  static scorer any() {
    return {.lag = *rc::gen::element(1, 2, 3, 5, 8), .sinks = *rc::gen::element(0, 1, 4), .cross = any_bool()};
  }
  static int last(scorer const&) { return 0; }
  static int blocks(scorer const& with, std::size_t entries) {
    return std::max(0, (static_cast<int>(entries) - with.sinks) / with.lag);
  }
  static bool forces(scorer const& with, told_of_lane const& lane, int e) {
    int const n = blocks(with, lane.keys.size());
    return e < with.sinks || (n >= 2 && e >= with.sinks + (n - 1) * with.lag);
  }
  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    std::size_t const count = lane.keys.size(), first = as_size(with.sinks), lag = as_size(with.lag);
    reference::row made(count, std::nan(""));
    if (blocks(with, count) < 2) {
      for (std::size_t e = first; e < count; ++e) {
        made[e] = static_cast<double>(e - first) / static_cast<double>(count - first);
      }
      return made;
    }
    double quotient = 0;
    reference::row share = reference::lag_shares(lane.keys, lag, first, quotient);
    reference::row const of_values = reference::lag_shares(lane.values, lag, first, quotient);
    for (std::size_t e = 0; e < count; ++e) share[e] = (share[e] + of_values[e]) / 2;
    for (std::size_t begin = first; begin + 2 * lag <= count; begin += lag) {
      for (std::size_t e = begin; e < begin + lag; ++e) {
        made[e] = with.cross ? share[e] : reference::rank_among(share, begin, begin + lag, e);
        for (std::size_t other = begin; other < e && !with.cross; ++other) {
          bool const same = lane.keys[e] == lane.keys[other] && lane.values[e] == lane.values[other];
          if (!same && std::fabs(share[e] - share[other]) < 1e-5) return {};  // rounding decides which is worse
        }
      }
    }
    return made;
  }

  /// Two blocks of two entries, and one entry that is left.
  static void worked() {
    told_of_lane lane;
    lane.keys = {{0, 0}, {1, 3}, {1, 1}, {2, 3}, {7, 7}};
    lane.values = lane.keys;
    reference::row const shares = scores({.lag = 2, .sinks = 0, .cross = true}, lane);
    CHECK(shares[0] == doctest::Approx(0.412521).epsilon(1e-5));
    CHECK(shares[1] == doctest::Approx(0.587479).epsilon(1e-5));
    reference::row const ranks = scores({.lag = 2, .sinks = 0}, lane);
    CHECK(ranks[0] == 0);
    CHECK(ranks[1] == 0.5);
    reference::row const few = scores({.lag = 2, .sinks = 2}, lane);
    for (std::size_t e = 2; e < 5; ++e) CHECK(few[e] == doctest::Approx(static_cast<double>(e - 2) / 3));
  }
};

}  // namespace kvpolicy_test::methods
