// SPDX-License-Identifier: Apache-2.0
// Expected Attention of a prompt's rows, of a profile, by name and on a device; AdaEA's margin as an admission.

#include "reference/methods.hpp"
#include "support/device.hpp"
#include "support/method.hpp"

namespace expected_attention_test {

using namespace kvpolicy_test;

constexpr kv::shape model{2, 4, 2, 8};

/// A prompt of one sequence: a cache in memory of its own, and query rows before RoPE.
struct prompt {
  prompt(std::uint64_t seed, int entries, int capacity, int first = 0, int gap = 1)
      : keys(as_size(4 * capacity * 8)), values(keys), rows(as_size(2 * 4 * entries * 8)), bound(capacity) {
    dice random(seed);
    for (auto* const all : {&keys, &values, &rows}) {
      for (float& each : *all) each = static_cast<float>(random.real(2));
    }
    for (int e = 0; e < 4 * capacity; ++e) position.push_back(first + gap * (e % capacity));  // of each lane
    std::fill_n(counts, 4, entries);
    count = entries;
  }
  [[nodiscard]] kv::cache cache() {
    return kv::contiguous_cache(keys.data(), values.data(), model, bound, counts, position.data());
  }
  [[nodiscard]] kv::pre_rope_queries queries() const {
    kv::pre_rope_queries made;
    made.base = reinterpret_cast<std::byte const*>(rows.data());
    made.dims = 8;
    made.row = 32;
    made.head = made.row * count;
    made.layer = made.head * 4;
    made.heads = 4;
    made.rows = count;
    made.position = {position.data()};
    made.rope = turns;
    return made;
  }
  /// Query head `head` of layer `layer`, without rows at positions below `sinks`.
  [[nodiscard]] reference::moments moments(int layer, int head, int sinks) const {
    reference::matrix counted;
    for (int r = 0; r < count; ++r) {
      float const* const row = rows.data() + ((layer * 4 + head) * count + r) * 8;
      if (position[as_size(r)] >= sinks) counted.emplace_back(row, row + 8);
    }
    return reference::moments_of(counted, 8);
  }
  std::vector<float> keys, values, rows;
  std::vector<int> position;
  int count = 0, counts[4], bound;
  kv::rope turns{.theta = 100};
};

template <class Executor, class Score, class... Signals>
std::vector<float> scores_of(Executor& exec, prompt& of, Score const& score, Signals const&... more) {
  kv::cache cache = of.cache();
  kv::eviction const policy{.score = score, .budget = kv::per_lane{1}};
  auto [state, plan] =
      decided(exec, kv::signals{cache.lanes, kv::keys_of(cache), kv::values_of(cache), more...}, policy, cache);
  if constexpr (requires { exec.check(); }) exec.check();
  std::vector<float> made;
  for (int s = 0; s < 4; ++s) {
    for (int e = 0; e < of.count; ++e) made.push_back(plan.score(s, e));
  }
  return made;
}

reference::row expected_scores(prompt const& of, kv::expected_attention const& how) {
  reference::row made;
  auto const by = reference::mean_rotation({.theta = 100}, 8, 8, of.position[as_size(of.count) - 1], how.future);
  for (int lane = 0; lane < 4; ++lane) {
    auto const at = [&](std::vector<float> const& rows, int e) {
      // layer, token, KV head, channel
      float const* const row = rows.data() + ((lane / 2 * of.bound + e) * 2 + lane % 2) * 8;
      return reference::row(row, row + 8);
    };
    reference::row mean(as_size(of.count), 0.0);
    for (int h = 0; h < 2; ++h) {
      auto const later = reference::turned(by, of.moments(lane / 2, lane % 2 * 2 + h, how.sinks));
      reference::row one;
      int begin = of.count;
      for (int e = of.count - 1; e >= 0 && of.position[as_size(e)] >= how.sinks; --e) begin = e;
      for (int e = begin; e < of.count; ++e) {
        one.push_back(reference::expected_logit(later, at(of.keys, e), std::sqrt(1.0 / 8), how.covariance));
      }
      if (one.empty()) continue;
      one = reference::softmax_of(one);
      for (std::size_t e = 0; e < one.size(); ++e) mean[as_size(begin) + e] += one[e] / 2;
    }
    for (int e = 0; e < of.count; ++e) {
      auto const value = at(of.values, e);
      double const norm = how.values ? std::sqrt(reference::dot(value, value)) : 1;
      made.push_back((mean[as_size(e)] + (how.values ? static_cast<double>(how.epsilon) : 0)) * norm);
    }
  }
  return made;
}

TEST_SUITE("scorers/expected_attention") {
  TEST_CASE("the worked numbers") {
    float const keys[] = {1, 0, 0, 2, -1, 1}, values[] = {1, 0, 0, 1, 2, 0}, mean[] = {1, 0},
                square[] = {0.5f, 0, 0, 0.1f};
    int const count = 3, positions[] = {0, 1, 2};
    kv::shape const small{1, 1, 1, 2};
    std::vector<float> k(keys, keys + 6), v(values, values + 6);
    std::vector<int> p(positions, positions + 3);
    int n = count;
    kv::cache cache = kv::contiguous_cache(k.data(), v.data(), small, 3, &n, p.data());
    kv::query_model profile = kv::query_model_of(mean, mean, small, {});
    profile.radius = {};
    profile.square = profile.mean;
    profile.square.base = reinterpret_cast<std::byte const*>(square);
    profile.square.rows = 2;
    profile.square.row = 8;
    kv::host_executor exec;
    auto const check = [&](kv::expected_attention const& score, double a, double b, double c) {
      kv::eviction const policy{.score = score, .budget = kv::per_lane{2}};
      auto [state, plan] = state_and_plan(exec, policy, cache);
      kv::decide(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache), kv::values_of(cache), profile}, state,
                 plan);
      CHECK(static_cast<double>(plan.score(0, 0)) == doctest::Approx(a).epsilon(2e-6));
      CHECK(static_cast<double>(plan.score(0, 1)) == doctest::Approx(b).epsilon(2e-6));
      CHECK(static_cast<double>(plan.score(0, 2)) == doctest::Approx(c).epsilon(2e-6));
    };
    check({.future = 0, .sinks = 0}, 0.577979, 0.277947, 0.288147);
    check({.future = 0, .sinks = 0, .values = false}, 0.577979, 0.277947, 0.144074);
    check({.future = 0, .sinks = 0, .epsilon = 0.5f}, 1.077979, 0.777947, 1.288147);
    check({.future = 0, .sinks = 3}, 0, 0, 0);  // nothing is behind the sinks
    kv::query_model const without = kv::query_model_of(mean, mean, small, {});
    CHECK(error_of([&] { profile.square = without.square, check({}, 0, 0, 0); }) ==
          "decide: query_model.square = null, but expected_attention reads it");
  }

  TEST_CASE("a prompt's rows give the reference's scores, by name and on a device, too") {
    holds("expected_attention == reference", 60, [] {
      int const entries = *rc::gen::inRange(1, 40);
      auto const seed = any_seed();
      prompt of(seed, entries, entries + *rc::gen::element(0, 3), *rc::gen::element(0, 0, 2, 1000),
                *rc::gen::element(1, 2));
      kv::expected_attention const how{.future = *rc::gen::element(0, 1, 16, 512),
                                       .sinks = *rc::gen::element(0, 1, 4),
                                       .epsilon = *rc::gen::element(0.0f, 0.1f),
                                       .covariance = any_bool(),
                                       .values = any_bool()};
      RC_LOG() << kv::to_string(how) << ", " << entries << " entries\n";
      kv::host_executor exec(*rc::gen::element(1, 3));
      device_executor device({}, seed);
      kv::pre_rope_queries const rows = of.queries();
      auto const found = scores_of(exec, of, how, rows);
      auto const expected = expected_scores(of, how);
      assert_same(compare(found, expected, 1));
      RC_ASSERT(scores_of(exec, of, kv::any_scorer(how), rows) == found);
      RC_ASSERT(compare(scores_of(device, of, how, rows), expected, 1).same);
      // A profile of the same moments has the same scores; it comes before rows.
      std::vector<float> mean, square;
      for (int i = 0; i < 8; ++i) {
        auto const one = of.moments(i / 4, i % 4, how.sinks);
        for (double const each : one.mean) mean.push_back(static_cast<float>(each));
        for (auto const& row : one.square) square.insert(square.end(), row.begin(), row.end());
      }
      kv::query_model profile = kv::query_model_of(mean.data(), mean.data(), model, of.turns);
      profile.square = profile.mean;
      profile.square.base = reinterpret_cast<std::byte const*>(square.data());
      profile.square.rows = 8;
      profile.square.row = 32;
      profile.square.head = 32 * 8;
      profile.square.layer = 32 * 8 * 4;
      RC_ASSERT(compare(scores_of(exec, of, how, profile), expected, 1).same);
      prompt other(seed + 1, entries, of.bound);
      RC_ASSERT(scores_of(exec, of, how, profile, other.queries()) == scores_of(exec, of, how, profile));
      RC_ASSERT(scores_of(exec, of, kv::any_scorer(how), profile, other.queries()) ==
                scores_of(exec, of, how, profile));
    });
  }

  TEST_CASE("an admission keeps what one of the query heads expects above its threshold") {
    holds("ada_ea == formula", 40, [] {
      int const entries = *rc::gen::inRange(1, 40);
      auto const seed = any_seed();
      prompt of(seed, entries, entries);
      float thresholds[8];
      dice random(seed + 1);
      for (float& each : thresholds) each = static_cast<float>(random.real(2));
      kv::query_model profile = kv::query_model_of(of.rows.data(), of.rows.data(), model, {});
      std::vector<float> square;
      for (int i = 0; i < 8 * 64; ++i) square.push_back(static_cast<float>(random.real(0.2)));
      profile.square = profile.mean;
      profile.square.base = reinterpret_cast<std::byte const*>(square.data());
      profile.square.rows = 8;
      profile.square.row = 32;
      profile.square.head = 32 * 8;
      profile.square.layer = 32 * 8 * 4;
      kv::ada_ea const how{.window = 1,
                           .sinks = *rc::gen::element(0, 3),
                           .covariance = any_bool(),
                           .thresholds = {{thresholds, 0, 4, 2}, 2}};
      kv::host_executor exec;
      kv::cache cache = of.cache();
      auto const policy = how.admission();
      auto [state, plan] = decided(exec, kv::signals{cache.lanes, kv::keys_of(cache), profile}, policy, cache);
      for (int lane = 0; lane < 4; ++lane) {
        std::vector<int> expected;
        bool close = false;
        for (int e = 0; e < entries; ++e) {
          float const* const row = of.keys.data() + ((lane / 2 * of.bound + e) * 2 + lane % 2) * 8;
          bool admitted = e < how.sinks;
          for (int h = 0; h < 2; ++h) {
            int const head = lane * 2 + h;
            reference::moments moments{{of.rows.data() + head * 8, of.rows.data() + head * 8 + 8}, {}};
            for (int a = 0; a < 8; ++a) {
              float const* const from = square.data() + head * 64 + a * 8;
              moments.square.emplace_back(from, from + 8);
            }
            double const x = reference::expected_logit(moments, {row, row + 8}, std::sqrt(1.0 / 8), how.covariance);
            double const margin = x - static_cast<double>(thresholds[head]);
            admitted = admitted || margin > 0;
            close = close || std::fabs(margin) < 1e-5;
          }
          if (admitted) expected.push_back(e);
        }
        RC_ASSERT(close || listed(plan.keep(), lane) == expected);
      }
    });
  }
}

}  // namespace expected_attention_test
