// SPDX-License-Identifier: Apache-2.0
// The allotter `ranks` against its description.
#include "support/device.hpp"
#include "support/test.hpp"

namespace ranks_test {

using namespace kvpolicy_test;

/// Shares of layers whose lanes have these scores. NaN is behind all.
std::vector<int> expected_shares(std::vector<std::vector<std::vector<double>>> layers, std::vector<int> const& averages,
                                 bool first_layer) {
  double const none = std::nan("");
  auto const higher = [](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a > b; };
  std::size_t const count = layers.size();
  std::vector<std::vector<double>> composites(count);
  std::int64_t total = 0;
  for (std::size_t l = 0; l < count; ++l) {
    std::size_t most = 0;
    for (auto& lane : layers[l]) {
      std::sort(lane.begin(), lane.end(), higher);
      most = std::max(most, lane.size());
    }
    for (std::size_t r = 0; r < most; ++r) {
      double sum = 0;
      for (auto const& lane : layers[l]) sum += r < lane.size() ? lane[r] : none;
      composites[l].push_back(static_cast<double>(static_cast<float>(sum / static_cast<double>(layers[l].size()))));
    }
    total += averages[l];
  }
  for (std::size_t r = 0; first_layer && r < composites[0].size(); ++r) {
    for (auto const& other : composites) {
      if (r < other.size() && higher(other[r], composites[0][r])) composites[0][r] = other[r];
    }
  }
  std::vector<std::pair<double, std::size_t>> all;
  for (std::size_t l = 0; l < count; ++l) {
    for (double const each : composites[l]) all.push_back({each, l});
  }
  std::sort(all.begin(), all.end(), [&](auto const& a, auto const& b) {
    if (higher(a.first, b.first) || higher(b.first, a.first)) return higher(a.first, b.first);
    return a.second < b.second;
  });
  std::vector<int> shares(count, 0);
  for (std::size_t i = 0; i < std::min(all.size(), as_size(total)); ++i) ++shares[all[i].second];
  for (int& each : shares) each = std::max(each, 1);
  return shares;
}

/// The shares that a plan has after a decision by norms, for each lane in turn, and how many entries each keeps.
template <class Executor, class Policy>
std::pair<std::vector<int>, std::vector<int>> allotted(Policy const& policy, mock_cache& cache) {
  Executor exec;
  kv::cache const view = cache.view();
  auto [state, plan] = decided(exec, kv::signals{view.lanes, kv::keys_of(view)}, policy, view);
  if constexpr (requires { exec.check(); }) exec.check();
  std::pair<std::vector<int>, std::vector<int>> made;
  for (int i = 0; i < view.lanes.size(); ++i) {
    made.first.push_back(*plan.shares().row(view.lanes.at(i)));
    made.second.push_back(static_cast<int>(listed(plan.keep(), i).size()));
  }
  return made;
}

TEST_SUITE("parts/ranks") {
  TEST_CASE("a layer's share is how many of its ranks are among the best of all layers") {
    holds("any norms in lanes of any lengths", 100, [] {
      int const sequences = *rc::gen::element(1, 2), layers = *rc::gen::inRange(1, 6);
      int const heads = *rc::gen::element(1, 2, 3), bound = *rc::gen::inRange(1, 40);
      int const tokens = *rc::gen::inRange(0, bound + 2);
      bool const ragged = any_bool(), first_layer = any_bool();
      bool const by_ratio = any_bool();
      double const ratio = *rc::gen::element(0.25, 0.5, 0.75);
      int const values = *rc::gen::element(4, 64);
      dice random(*rc::gen::inRange<std::uint64_t>(1, 1000));
      mock_cache cache({.model = {.layers = layers, .query_heads = heads, .kv_heads = heads, .head_dim = 4},
                        .sequences = sequences,
                        .bound = bound});
      std::vector<int> expected;
      for (int s = 0; s < sequences; ++s) {
        std::vector<std::vector<std::vector<double>>> scores(as_size(layers));
        std::vector<int> averages;
        for (int l = 0; l < layers; ++l) {
          int most = 0;
          for (int h = 0; h < heads; ++h) {
            int const count = ragged ? random.below(bound + 1) : bound;
            most = std::max(most, count);
            cache.put({s, l, h}, up_to(count));
            auto& lane = scores[as_size(l)].emplace_back();
            for (int e = 0; e < count; ++e) {
              lane.push_back(-random.below(values) / 8.0);
              cache.write(of::keys, {s, l, h}, e, {-lane.back(), 0, 0, 0});
            }
          }
          averages.push_back(by_ratio ? kv::drop_ratio{ratio}({s, l, 0}, most) : tokens);
        }
        for (int const share : expected_shares(scores, averages, first_layer)) {
          for (int h = 0; h < heads; ++h) expected.push_back(share);
        }
      }
      std::string const amount = by_ratio ? "ratio=" + kv::to_string(ratio) : std::to_string(tokens);
      auto const named =
          kv::parse("knorm | budget(" + amount + ", by=ranks, first_layer=" + (first_layer ? "true)" : "false)"));
      auto const [shares, kept] = allotted<kv::host_executor>(named, cache);
      RC_ASSERT(shares == expected);
      for (std::size_t i = 0; i < kept.size(); ++i) {
        RC_ASSERT(kept[i] == std::min(shares[i], cache.committed(cache.lane_at(static_cast<int>(i)))));
      }
      RC_ASSERT(named == kv::parse(kv::to_string(named)));
      kv::eviction const typed{.score = kv::knorm{},
                               .budget = kv::shared_out<kv::ranks>{.tokens = tokens, .by = {first_layer}}};
      auto const on_device = allotted<device_executor>(typed, cache);
      RC_ASSERT(on_device == allotted<kv::host_executor>(typed, cache));
      if (!by_ratio) RC_ASSERT(on_device.first == expected);
    });
  }

  TEST_CASE("entries that the scorer forces have the first ranks, and a plan without the rows is refused") {
    kv::ranks const by{.first_layer = false};
    CHECK(by.with_window(3) == kv::ranks{false, 3});
    CHECK(error_of([&] { by.with_window(-1).check("make_plan"); }) ==
          "make_plan: ranks.window = -1, but a count cannot be negative");
    mock_cache cache({.model = {.layers = 2, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 6});
    for (int l = 0; l < 2; ++l) {
      cache.put({0, l, 0}, up_to(6));
      for (int e = 0; e < 6; ++e) cache.write(of::keys, {0, l, 0}, e, {1.0 + e + 10 * l, 0, 0, 0});
    }
    auto const policy = [&](int window) {
      return kv::eviction{.score = kv::knorm{},
                          .budget = kv::shared_out<kv::ranks>{.tokens = 3, .by = by.with_window(window)}};
    };
    CHECK(allotted<kv::host_executor>(policy(0), cache).first == std::vector<int>{6, 1});
    CHECK(allotted<kv::host_executor>(policy(2), cache).first == std::vector<int>{4, 2});
    kv::host_executor exec;
    kv::cache const view = cache.view();
    auto [held, own] = state_and_plan(exec, policy(2), view);
    kv::signals const in{view.lanes, kv::keys_of(view)};
    CHECK(allocations_in([&] { kv::decide(exec, policy(2), in, held, own); }) == 0);
    kv::eviction const other{.score = kv::knorm{}, .budget = kv::shared_out<kv::hits>{.tokens = 3}};
    auto [state, plan] = state_and_plan(exec, other, view);
    CHECK(error_of([&] { kv::decide(exec, policy(0), in, state, plan); }) ==
          "decide: plan = without the spare rows that this policy needs, but make_plan makes it for the policy that "
          "decides");
    auto const bytes = [&](auto const& one) { return kv::required_bytes<kv::host_executor>(one, view).plan; };
    CHECK(bytes(policy(0)) == bytes(other) + 2 * 6 * sizeof(float));
  }
}

}  // namespace ranks_test
