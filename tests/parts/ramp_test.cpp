// SPDX-License-Identifier: Apache-2.0
// Budgets that fall from layer to layer.
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

std::vector<int> shares_of(kv::layer_ramp const& by, int tokens, int count) {
  std::vector<int> made;
  for (int layer = 0; layer < by.layers; ++layer) made.push_back(by(layer, tokens, count));
  return made;
}

/// The shares of the exact rule, from its text: real shares, then one more entry for the largest remainders.
std::vector<int> exact_shares(int layers, double beta, int window, int tokens, int count) {
  int const seen = std::min(window, count);
  double const average = std::max(0, tokens - seen);
  double low = average / beta;
  double high = 2 * average - low;
  if (high > count - seen) high = count - seen, low = 2 * average - high;
  std::vector<int> whole;
  std::vector<std::pair<std::int64_t, int>> rest;
  for (int l = 0; l < layers; ++l) {
    double const share = tokens < seen ? seen : layers == 1 ? tokens : seen + high - l * (high - low) / (layers - 1);
    whole.push_back(static_cast<int>(std::floor(share + 1e-9)));
    double const part = std::max(0.0, share - whole.back());
    rest.push_back({-static_cast<std::int64_t>(std::floor(1e9 * part + 0.5)), l});
  }
  std::sort(rest.begin(), rest.end());
  int const left = layers * tokens - std::accumulate(whole.begin(), whole.end(), 0);
  for (int i = 0; i < std::min(left, layers); ++i) ++whole[as_size(rest[as_size(i)].second)];
  return whole;
}

TEST_SUITE("parts/ramp") {
  TEST_CASE("the worked numbers: 512 tokens, a window of 8, four layers, beta 20") {
    kv::layer_ramp by{.beta = 20, .window = 8, .layers = 4};
    CHECK(shares_of(by, 512, 100000) == std::vector<int>{991, 672, 352, 33});
    by.rule = kv::ramp_rule::factory;
    CHECK(shares_of(by, 512, 100000) == std::vector<int>{991, 672, 353, 34});  // 983 664 345 26 and the window
  }

  TEST_CASE("exact shares are those of the text, and sum to the budget of all layers") {
    holds("any ramp", 300, [] {
      int const layers = *rc::gen::inRange(1, 40);
      int const window = *rc::gen::element(0, 1, 8, 32, 500);
      int const count = *rc::gen::inRange(1, 5000);
      int const tokens = *rc::gen::inRange(0, count + 1);
      double const beta = *rc::gen::element(1.0, 2.0, 7.3, 20.0, 100.0);
      kv::layer_ramp const by{.beta = beta, .window = window, .layers = layers};
      std::vector<int> const shares = shares_of(by, tokens, count);
      RC_ASSERT(shares == exact_shares(layers, beta, window, tokens, count));
      if (tokens < std::min(window, count)) return;
      RC_ASSERT(std::accumulate(shares.begin(), shares.end(), 0) == layers * tokens);
      RC_ASSERT(*std::min_element(shares.begin(), shares.end()) >= std::min(window, count));
      RC_ASSERT(*std::max_element(shares.begin(), shares.end()) <= std::max(count, tokens));
    });
  }

  TEST_CASE("kvpress rounds halves to even, and has no ramp where it leaves its limits") {
    kv::layer_ramp by{.beta = 2, .rule = kv::ramp_rule::kvpress, .layers = 3};
    CHECK(shares_of(by, 10, 100) == std::vector<int>{15, 10, 5});
    CHECK(shares_of(by, 5, 100) == std::vector<int>{8, 5, 2});  // 7.5, 5 and 2.5
    by.window = 6;
    CHECK(shares_of(by, 10, 100) == std::vector<int>{10, 10, 10});  // the last layer would be below its window
    CHECK(shares_of(by, 0, 100) == std::vector<int>{1, 1, 1});
  }

  TEST_CASE("kvpress does not round the average of a ratio before the shares") {
    kv::layer_ramp const by{.rule = kv::ramp_rule::kvpress, .window = 64, .layers = 3};
    auto const share = [&](int layer, int count, double part) {
      return by(layer, static_cast<int>(count * part), count, count * part);
    };
    CHECK(share(0, 573, 0.75) == 509);
    CHECK(share(1, 573, 0.75) == 430);  // of an average of 429.75
    CHECK(share(2, 573, 0.75) == 350);
    CHECK(share(2, 101, 0.7) == 71);  // it has no ramp, and 70.7 entries are 71
    auto limit = kv::parse("knorm | budget(ratio=0.25, rounding=kvpress, by=ramp, rule=kvpress)").budget;
    limit.shares = by;
    CHECK(limit({0, 1, 0}, 573) == 430);
  }

  TEST_CASE("a budget alone has no layers, and a decision gives it those of the model") {
    kv::ramp const limit{.tokens = 12, .shares = {.beta = 4}};
    CHECK(limit({0, 3, 0}, 100) == 12);
    kv::ramp const there = limit.in_entries({.layers = 2, .query_heads = 1, .kv_heads = 1, .head_dim = 8}, 64);
    CHECK(there({0, 0, 0}, 100) == 21);
    CHECK(there({0, 1, 0}, 100) == 3);
    CHECK(kv::to_string(limit) == "budget(12, by=ramp, beta=4)");
    CHECK_THROWS_WITH(kv::ramp({.tokens = 3, .shares = {.beta = 0.5}}).check("decide"),
                      "decide: budget.beta = 0.5, but the last layer's share is 1 / beta of the average, beta >= 1");
  }
}

}  // namespace
