// SPDX-License-Identifier: Apache-2.0
// R-KV: importance by the last query rows, less the resemblance to other keys.
#pragma once

#include "reference/methods.hpp"
#include "support/masses.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct r_kv {
  using scorer = kv::r_kv;
  static constexpr auto header = "r_kv.hpp";
  static constexpr refusal refusals[] = {
      {"r_kv(window=0)", "parse: column 1: r_kv.window = 0, but at least one row observes"},
      {"r_kv(lambda=1.5)", "parse: column 1: r_kv.lambda = 1.5, but the part of importance, 0 to 1"},
      {"r_kv(threshold=-0.5)", "parse: column 1: r_kv.threshold = -0.5, but it is a cosine, 0 to 1"}};

  /// No keys of whole numbers have a cosine as close to the threshold as rounding errors are.
  static scorer any() {
    return {.window = *rc::gen::inRange(1, 12),
            .lambda = *rc::gen::element(0.0f, 0.07f, 0.5f, 1.0f),
            .pool = *rc::gen::element<kv::pooling>(kv::no_pool{}, kv::max_pool{3}, kv::avg_pool{5}),
            .threshold = *rc::gen::element(0.03571f, 0.48713f, 0.87129f),
            .retain = *rc::gen::element(kv::retained_similar::last, kv::retained_similar::none)};
  }
  static int last(scorer const& with) { return with.window; }
  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    reference::r_kv_options const options{with.window, static_cast<double>(with.lambda), in_double(with.pool),
                                          static_cast<double>(with.threshold),
                                          with.retain == kv::retained_similar::last};
    return reference::r_kv_scores(lane.attention(), options);
  }

  static void worked() {
    reference::row const means = reference::redundancy({{1, 0}, {1, 0.1}, {0, 1}, {1, 0}, {0.6, 0.8}}, 0.5, true);
    reference::row const shares = reference::softmax_of(means);
    double const mean[] = {0.519007, 0.553241, 0.179901, 0.399007, 0};
    double const share[] = {0.236448, 0.244682, 0.168447, 0.209710, 0.140713};
    double const importance[] = {0.05, 0.10, 0.30, 0.05, 0.50};
    double const score[] = {-0.216397, -0.220554, -0.135656, -0.19153, -0.095863};
    for (std::size_t j = 0; j < 5; ++j) {
      CHECK(means[j] == doctest::Approx(mean[j]).epsilon(1e-5));
      CHECK(shares[j] == doctest::Approx(share[j]).epsilon(1e-5));
      CHECK(0.07 * importance[j] - 0.93 * shares[j] == doctest::Approx(score[j]).epsilon(1e-5));
    }
  }
};

}  // namespace kvpolicy_test::methods
