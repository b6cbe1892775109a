// SPDX-License-Identifier: Apache-2.0
// CapKV: weighted leverages of values, by how much keys point where queries do.
#pragma once

#include "reference/leverage.hpp"
#include "reference/methods.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct cap_kv {
  using scorer = kv::cap_kv;
  static constexpr auto header = "cap_kv.hpp";
  static constexpr refusal refusals[] = {
      {"cap_kv(tau=-1)", "parse: column 1: cap_kv.tau = -1, but a finite number, 0 or more"},
      {"cap_kv(future=-1)", "parse: column 1: cap_kv.future = -1, but a count cannot be negative"},
      {"cap_kv(sinks=-2)", "parse: column 1: cap_kv.sinks = -2, but a count cannot be negative"},
      {"cap_kv(epsilon=-1)", "parse: column 1: cap_kv.epsilon = -1, but a finite number, 0 or more"}};

  static scorer any() {
    return {.tau = *rc::gen::element(0.0f, 1.0f, 5.0f),
            .future = *rc::gen::element(0, 1, 7, 512),
            .sinks = *rc::gen::element(0, 1, 4),
            .epsilon = *rc::gen::element(0.0f, 1e-6f, 0.5f)};
  }
  static int last(scorer const&) { return 0; }
  static int sinks(scorer const& with) { return with.sinks; }
  static kv::rope turns(scorer const&) { return {.theta = 100}; }

  static double cosine(reference::row const& a, reference::row const& b) {
    double const norms =
        std::max(std::sqrt(reference::dot(a, a)), 1e-12) * std::max(std::sqrt(reference::dot(b, b)), 1e-12);
    return reference::dot(a, b) / norms;
  }
  /// Of the entries behind the sinks: their keys and values, by one mean query.
  static reference::row one_head(scorer const& with, reference::row const& anchor, reference::matrix const& keys,
                                 reference::matrix const& values) {
    reference::row weights;
    double most = -reference::infinity;
    for (reference::row const& key : keys) most = std::max(most, cosine(anchor, key));
    for (reference::row const& key : keys) weights.push_back(std::exp(double{with.tau} * (cosine(anchor, key) - most)));
    return reference::weighted_leverages(values, weights, double{with.epsilon}, 1);
  }
  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    std::size_t const count = lane.keys.size();
    reference::row made(count, 0.0);
    auto const by = reference::mean_rotation({.theta = 100}, told_lanes::dims, told_lanes::dims, lane.positions.back(),
                                             with.future);
    reference::matrix keys, values;
    for (std::size_t e = 0; e < count; ++e) {
      if (lane.positions[e] < with.sinks) continue;
      keys.push_back(lane.keys[e]);
      values.push_back(lane.values[e]);
    }
    for (int h = 0; h < told_lanes::group && !keys.empty(); ++h) {
      auto const later = reference::turned(by, told_lanes::moments(lane.number, h));
      reference::row const one = one_head(with, later.mean, keys, values);
      for (std::size_t e = 0; e < one.size(); ++e) made[count - one.size() + e] += one[e] / told_lanes::group;
    }
    return made;
  }

  /// Values 2 and 3 in directions of their own, of keys along and across the query.
  static void worked() {
    reference::row const made = one_head({.epsilon = 0}, {1, 0}, {{4, 0}, {0, 1}}, {{2, 0}, {0, 3}});
    double const weight = std::exp(-5.0);
    CHECK(made[0] == doctest::Approx(4 / 5.0));
    CHECK(made[1] == doctest::Approx(9 * weight / (1 + 9 * weight)));
  }
};

}  // namespace kvpolicy_test::methods
