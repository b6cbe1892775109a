// SPDX-License-Identifier: Apache-2.0
// Expected Attention: the attention of normal queries, turned to the positions that are to come.
#pragma once

#include "reference/methods.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct expected_attention {
  using scorer = kv::expected_attention;
  static constexpr double size = 50;
  static constexpr auto header = "expected_attention.hpp";
  static constexpr refusal refusals[] = {
      {"expected_attention(future=-1)",
       "parse: column 1: expected_attention.future = -1, but a count cannot be negative"},
      {"expected_attention(sinks=-2)",
       "parse: column 1: expected_attention.sinks = -2, but a count cannot be negative"},
      {"expected_attention(epsilon=-1)",
       "parse: column 1: expected_attention.epsilon = -1, but it is added to every score, a number of 0 or more"}};

  static scorer any() {
    return {.future = *rc::gen::element(0, 1, 7, 512),
            .sinks = *rc::gen::element(0, 1, 4),
            .epsilon = *rc::gen::element(0.0f, 0.25f),
            .covariance = any_bool(),
            .values = any_bool()};
  }
  static int last(scorer const&) { return 0; }
  static int sinks(scorer const& with) { return with.sinks; }
  static kv::rope turns(scorer const&) { return {.theta = 100}; }

  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    std::size_t const count = lane.keys.size();
    reference::row made(count, 0.0);
    auto const by = reference::mean_rotation({.theta = 100}, told_lanes::dims, told_lanes::dims, lane.positions.back(),
                                             with.future);
    for (int h = 0; h < told_lanes::group; ++h) {
      auto const later = reference::turned(by, told_lanes::moments(lane.number, h));
      reference::row one;
      for (std::size_t e = 0; e < count; ++e) {
        if (lane.positions[e] >= with.sinks)
          one.push_back(reference::expected_logit(later, lane.keys[e], 0.5, with.covariance));
      }
      if (one.empty()) continue;
      one = reference::softmax_of(one);
      for (std::size_t e = 0; e < one.size(); ++e) made[count - one.size() + e] += one[e] / told_lanes::group;
    }
    for (std::size_t e = 0; e < count && with.values; ++e) {
      made[e] = (made[e] + static_cast<double>(with.epsilon)) * reference::row_norms(lane.values)[e];
    }
    return made;
  }

  static void worked() {
    reference::moments const of{{1, 0}, {{0.5, 0}, {0, 0.1}}};
    reference::matrix const keys{{1, 0}, {0, 2}, {-1, 1}};
    double const x[] = {0.832107, 0.1, -0.557107}, soft[] = {0.577979, 0.277947, 0.144074};
    reference::row made;
    for (std::size_t e = 0; e < 3; ++e) {
      made.push_back(reference::expected_logit(of, keys[e], std::sqrt(0.5), true));
      CHECK(made[e] == doctest::Approx(x[e]).epsilon(1e-5));
    }
    for (std::size_t e = 0; e < 3; ++e) CHECK(reference::softmax_of(made)[e] == doctest::Approx(soft[e]).epsilon(1e-5));
  }
};

}  // namespace kvpolicy_test::methods
