// SPDX-License-Identifier: Apache-2.0
// CAKE: the mean and the variance of the last rows' attention.
#pragma once

#include "reference/methods.hpp"
#include "support/masses.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct cake {
  using scorer = kv::cake;
  static constexpr auto header = "cake.hpp";
  static constexpr refusal refusals[] = {
      {"cake(window=1)", "parse: column 1: cake: cake.window = 1, but a variance is one of at least two rows"},
      {"cake(gamma=-1)", "parse: column 1: cake: cake.gamma = -1, but the weight of a variance, 0 or more"},
      {"cake(tau1=0)", "parse: column 1: cake: moments.tau1 = 0, but entropies are raised to 1 / tau1, tau1 > 0"}};
  static constexpr double size = 200;

  static scorer any() {
    return {.window = *rc::gen::element(2, 3, 7, 100),
            .pool = *rc::gen::element<kv::pooling>(kv::no_pool{}, kv::max_pool{3}, kv::avg_pool{5}),
            .gamma = *rc::gen::element(0.0f, 1.0f, 200.0f)};
  }
  static int last(scorer const& with) { return with.window; }
  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    reference::lane_attention const all = lane.attention();
    reference::row made(all.keys.size(), 0.0);
    for (std::size_t h = 0; h < all.queries.size(); ++h) {
      reference::attention_moments const of = reference::moments_of_head(all, h, with.window);
      reference::row head(made.size());
      for (std::size_t j = 0; j < made.size(); ++j) {
        head[j] = of.mean[j] + static_cast<double>(with.gamma) * of.variance[j];
      }
      head = reference::pooled(head, in_double(with.pool), std::min(with.window, static_cast<int>(head.size())));
      for (std::size_t j = 0; j < made.size(); ++j) made[j] += head[j] / static_cast<double>(all.queries.size());
    }
    return made;
  }
  /// Two layers of one head and two rows, whose entropies and variances share four entries out.
  static void worked() {
    reference::attention_moments const first =
        moments_of({{0.40, 0.30, 0.10, 0.10, 0.10, 0}, {0.10, 0.30, 0.20, 0.20, 0.10, 0.10}});
    reference::attention_moments const second =
        moments_of({{0.85, 0.05, 0.02, 0.03, 0.05, 0}, {0.70, 0.10, 0.05, 0.05, 0.05, 0.05}});
    CHECK(sum(first.entropy) == doctest::Approx(2.423451));
    CHECK(sum(first.variance) == doctest::Approx(0.055));
    CHECK(sum(second.entropy) == doctest::Approx(1.250869));
    CHECK(sum(second.variance) == doctest::Approx(0.01315));
    double const expected[] = {9.25, 0.3, 1.15, 1.15};
    for (std::size_t j = 0; j < 4; ++j) CHECK(first.mean[j] + 200 * first.variance[j] == doctest::Approx(expected[j]));

    // One lane a layer; the numbers stand where the scorer leaves them.
    std::vector<float> numbers{2.423451f, 0.055f, 0, 1.250869f, 0.01315f, 0};
    for (auto const& [tau1, tau2, most] : {std::array{1.6, 0.4, 6.0}, std::array{1.0, 1.0, 6.0}}) {
      mock_cache cache({.model = {.layers = 2, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 6});
      for (int l = 0; l < 2; ++l) cache.put(cache.lane_at(l), up_to(6));
      kv::host_executor exec;
      shown of(cache.lanes(), numbers.data());
      int shares[2];
      kv::moments{.tau1 = tau1, .tau2 = tau2, .window = 2}.allot(exec, of, kv::by_lane<int>{shares, 0, 1, 0});
      CHECK(shares[0] == static_cast<int>(most));  // 2 + 3.9 and 2 + 3.6, of which 4 are left to share
      CHECK(shares[1] == 2);
    }
  }

 private:
  /// What a decision shows: no scores, and 4 entries on average.
  struct shown final : kv::allotting<kv::host_executor> {
    shown(kv::lanes const& batch, float* numbers) {
      scores.lanes = batch;
      scores.spare = numbers;
      average.tokens = 4;
    }
    [[nodiscard]] kv::kept_of_lanes kept(kv::budget_scope, kv::sure_part, kv::forced_by) override { return {}; }
  };
  static double sum(reference::row const& of) { return std::accumulate(of.begin(), of.end(), 0.0); }
  /// Of two rows whose probabilities are given, the last entries being theirs.
  static reference::attention_moments moments_of(reference::matrix const& p) {
    reference::lane_attention lane;
    lane.scale = 1;
    lane.queries = {{}};
    for (std::size_t j = 0; j < 6; ++j) {
      lane.keys.push_back(reference::row(6, 0.0));
      lane.keys[j][j] = 1;
      lane.key_positions.push_back(static_cast<int>(j));
    }
    for (std::size_t r = 0; r < 2; ++r) {
      lane.queries[0].push_back(reference::row(6, 0.0));
      for (std::size_t j = 0; j < 6; ++j) lane.queries[0][r][j] = p[r][j] > 0 ? std::log(p[r][j]) : -1e3;
      lane.query_positions.push_back(static_cast<int>(4 + r));
    }
    return reference::moments_of_head(lane, 0, 2);
  }
};

}  // namespace kvpolicy_test::methods
