// SPDX-License-Identifier: Apache-2.0
// The published methods on numbers worked out by hand: the whole way through append, observe, decide and apply.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;
using ordinals = std::vector<int>;

constexpr kv::lane only{0, 0, 0};

/// Checks that floats, rounded to so many decimals, read `printed`.
void check_digits(float const* actual, reference::row const& printed, int decimals) {
  for (std::size_t j = 0; j < printed.size(); ++j) {
    INFO("entry ", j, ": ", actual[j], " should print as ", printed[j]);
    CHECK(std::abs(static_cast<double>(actual[j]) - printed[j]) <= 0.5 * std::pow(10.0, -decimals) + 1e-6);
  }
}

mock_options one_lane(int head_dim, int query_heads = 1) {
  return {.model = {.layers = 1, .query_heads = query_heads, .kv_heads = 1, .head_dim = head_dim}, .bound = 16};
}

/// SnapKV's example: D = 1, eight keys, and the two rows of its window.
struct snapkv_example {
  mock_cache cache{one_lane(1)};
  mock_queries rows{cache, kv::codec::f32, 2, 2};
  kv::host_executor exec;

  snapkv_example() {
    cache.put(only, up_to(8));
    double const keys[] = {0, 1, 2, 0, 3, 1, 0, 1};
    for (int e = 0; e < 8; ++e) cache.write(of::keys, only, e, {keys[e]});
    rows.set_position(0, 0, 6);
    rows.set_position(0, 1, 7);
    rows.write(0, 0, 0, 0, {1});
    rows.write(0, 0, 0, 1, {0.5});
  }

  /// Scores of the six entries before the window, and what a budget of 4 keeps.
  void check(kv::pooling pool, reference::row const& scores, ordinals const& kept) {
    kv::eviction const policy{.score = kv::snapkv{.window = 2, .pool = pool}, .budget = kv::per_lane{4}};
    auto [state, plan] = state_and_plan(exec, policy, cache.view());
    kv::signals const in{cache.lanes(), kv::keys_of(cache.view()), kv::queries{rows.view()}};
    observe_and_decide(exec, policy, in, state, plan);
    check_digits(plan.scores(cache.lanes()).row(0), scores, 6);
    CHECK(listed(plan.keep(), 0) == kept);
    CHECK(plan.report() == kv::report{.triggered = 1});
  }

  void check_mass(kv::query_view const& from, kv::attention_mass_options const& how, reference::row const& mass) {
    exec.reserve(1 << 16);
    owned_scores out(cache.lanes());
    kv::ops::compute_attention_mass(exec, kv::keys_of(cache.view()), from, how, out.view());
    check_digits(out.view().row(0), mass, 6);
  }
};

/// A lane whose attention is whatever a test wants: the key of position p is sqrt(D) e_p, so logits are the row itself.
struct chosen_attention {
  mock_cache cache{one_lane(8)};
  kv::host_executor exec;
  kv::eviction<kv::h2o> policy{.score = {.heavy = 1, .recent = 2}, .budget = {3}};
  kv::state<kv::host_executor> state = kv::make_state(exec, policy, cache.view());
  kv::plan<kv::host_executor> plan = kv::make_plan(exec, policy, cache.view());

  /// New tokens at `position`; row r gives `probabilities[r]` to the positions `seen`.
  void forward(int position, reference::matrix const& probabilities, std::vector<int> const& seen) {
    int const tokens = static_cast<int>(probabilities.size());
    kv::cache view = cache.view();
    mock_queries rows(cache, kv::codec::f32, tokens, tokens);
    for (int r = 0; r < tokens; ++r) {
      reference::row key(8, 0.0), query(8, 0.0);
      key[as_size(position + r)] = std::sqrt(8.0);
      reference::row const& given = probabilities[as_size(r)];
      for (std::size_t j = 0; j < given.size(); ++j) query[as_size(seen[j])] = std::log(given[j]);
      cache.write(of::keys, only, cache.count(only) + r, key);
      rows.write(0, 0, 0, r, query);
      rows.set_position(0, r, position + r);
    }
    kv::append(exec, view, state, {.sequence = 0, .tokens = tokens, .position = position});
    kv::signals const in{cache.lanes(), kv::keys_of(view), kv::queries{rows.view()}};
    observe_and_decide(exec, policy, in, state, plan);
  }
  void compact() {
    kv::cache view = cache.view();
    kv::apply(exec, kv::compact{}, plan, view, state);
  }
  void check_mass(reference::row const& printed) {
    check_digits(reinterpret_cast<float const*>(state.columns()[0].rows.row(only)), printed, 6);
  }
};

}  // namespace

TEST_SUITE("eviction/worked_examples") {
  TEST_CASE("StreamingLLM keeps two sinks and a recent window of three, and moves both on") {
    mock_cache cache(one_lane(4));
    cache.put(only, up_to(10));
    kv::host_executor exec;
    auto const policy = kv::policies::streaming_llm({.budget = 5, .sinks = 2});
    auto [state, plan] = state_and_plan(exec, policy, cache.view());
    kv::cache view = cache.view();
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    CHECK(listed(plan.keep(), 0) == ordinals{0, 1, 7, 8, 9});
    kv::apply(exec, kv::compact{}, plan, view, state);
    kv::append(exec, view, state, {.tokens = 2, .position = 10});
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    kv::apply(exec, kv::compact{}, plan, view, state);
    CHECK(cache.positions(only, cache.count(only)) == ordinals{0, 1, 9, 10, 11});
  }

  TEST_CASE("SnapKV keeps another pair of the prefix for every pool") {
    snapkv_example example;
    example.check(kv::no_pool{}, {.093870, .184549, .385230, .093870, .855208, .184549}, {2, 4, 6, 7});
    example.check(kv::avg_pool{3}, {.092806, .221216, .221216, .444769, .377876, .346586}, {3, 4, 6, 7});
    example.check(kv::max_pool{3}, {.184549, .385230, .385230, .855208, .855208, .855208}, {3, 4, 6, 7});
  }

  TEST_CASE("SnapKV's mass is causal inside the window; R-KV leaves the window out and takes means") {
    snapkv_example example;
    kv::query_view anywhere = example.rows.view();
    anywhere.position = {};
    example.check_mass(anywhere, {}, {.091910, .179222, .370751, .091910, .815851, .179222});
    example.check_mass(example.rows.view(), {},
                       {.093870, .184549, .385230, .093870, .855208, .184549, .027846 + .066023, .108854});
    example.check_mass(example.rows.view(),
                       {.domain = kv::key_domain::past,
                        .rows = kv::reduction::mean,
                        .group = kv::reduction::max,
                        .order = kv::reduction_order::group_on_logits},
                       {.054330, .104894, .214580, .054330, .466971, .104894, 0, 0});
  }

  TEST_CASE("where the group is reduced, before or after the softmax, decides the mass") {
    mock_cache cache(one_lane(4, 2));
    cache.put(only, {0, 1, 2});
    for (int e = 0; e < 3; ++e) {
      reference::row key(4, 0.0);
      key[as_size(e)] = 1;
      cache.write(of::keys, only, e, key);
    }
    mock_queries rows(cache, kv::codec::f32, 1, 1);
    rows.set_position(0, 0, 2);
    rows.write(0, 0, 0, 0, {4, 0, 0, 0});    // logits 2, 0, 0: twice as much, for D = 4
    rows.write(0, 0, 1, 0, {0, 3, 2.8, 0});  // logits 0, 1.5, 1.4
    kv::host_executor exec;
    exec.reserve(1 << 16);
    auto const check = [&](kv::reduction group, kv::reduction_order order, reference::row const& mass) {
      owned_scores out(cache.lanes());
      kv::ops::compute_attention_mass(exec, kv::keys_of(cache.view()), rows.view(), {.group = group, .order = order},
                                      out.view());
      check_digits(out.view().row(0), mass, 4);
    };
    using kv::reduction_order;
    check(kv::reduction::mean, reduction_order::rows_then_group, {.4459, .2882, .2659});
    check(kv::reduction::max, reduction_order::rows_then_group, {.7870, .4699, .4252});
    check(kv::reduction::max, reduction_order::group_on_logits, {.4640, .2814, .2546});
  }

  TEST_CASE("a maximum over the group and a sum over the rows do not commute") {
    mock_cache cache(one_lane(4, 2));
    cache.put(only, {0, 1, 2, 3});
    double const probabilities[2][2][4] = {{{.1, .2, .3, .4}, {.4, .3, .2, .1}},
                                           {{.25, .25, .25, .25}, {.7, .1, .1, .1}}};
    mock_queries rows(cache, kv::codec::f32, 2, 2);
    for (int e = 0; e < 4; ++e) {
      reference::row key(4, 0.0);
      key[as_size(e)] = 2;
      cache.write(of::keys, only, e, key);
    }
    for (int h = 0; h < 2; ++h) {
      for (int r = 0; r < 2; ++r) {
        reference::row logits;
        for (double const each : probabilities[h][r]) logits.push_back(std::log(each));
        rows.write(0, 0, h, r, logits);
      }
    }
    kv::query_view everywhere = rows.view();
    everywhere.position = {};
    kv::host_executor exec;
    exec.reserve(1 << 16);
    auto const check = [&](kv::reduction_order order, reference::row const& mass) {
      owned_scores out(cache.lanes());
      kv::ops::compute_attention_mass(exec, kv::keys_of(cache.view()), everywhere,
                                      {.group = kv::reduction::max, .order = order}, out.view());
      check_digits(out.view().row(0), mass, 5);
    };
    check(kv::reduction_order::group_then_rows, {.95, .55, .50, .50});
    check(kv::reduction_order::rows_then_group, {.95, .50, .50, .50});
  }

  TEST_CASE("a maximum over neighbours and a mean over heads do not commute") {
    owned_lanes const lanes(1, 1, 3, 5, {5, 5, 5});
    owned_scores scores(lanes.view());
    float const given[3][5] = {{.9f, 0, 0, 0, .2f}, {0, 0, .8f, 0, .1f}, {.45f, 0, .4f, 0, .15f}};
    for (int i = 0; i < 3; ++i) std::copy(std::begin(given[i]), std::end(given[i]), scores.row(i, 5).begin());
    kv::host_executor exec;
    exec.reserve(1024);
    kv::ops::pool(exec, kv::max_pool{3}, scores.view(), 0);
    float pool_then_mean[5];
    for (int e = 0; e < 5; ++e) pool_then_mean[e] = (scores.view().row(0)[e] + scores.view().row(1)[e]) / 2;
    check_digits(pool_then_mean, {.45, .85, .40, .50, .15}, 6);
    check_digits(scores.view().row(2), {.45, .45, .40, .40, .15}, 6);
  }

  TEST_CASE("H2O accumulates over prefill and steps, and its mass moves with the survivors") {
    chosen_attention lane;
    lane.forward(0, {{1}, {.5, .5}, {.2, .3, .5}}, {0, 1, 2});
    CHECK(listed(lane.plan.keep(), 0) == ordinals{0, 1, 2});
    lane.check_mass({1.7, .8, .5});
    lane.compact();
    lane.forward(3, {{.4, .1, .2, .3}}, {0, 1, 2, 3});
    lane.check_mass({2.1, .9, .7, .3});
    CHECK(listed(lane.plan.keep(), 0) == ordinals{0, 2, 3});
    lane.compact();
    lane.check_mass({2.1, .7, .3});
    lane.forward(4, {{.2, .5, .2, .1}}, {0, 2, 3, 4});
    lane.check_mass({2.3, 1.2, .5, .1});
    CHECK(listed(lane.plan.keep(), 0) == ordinals{0, 2, 3});
    lane.compact();
    CHECK(lane.cache.positions(only, 3) == ordinals{0, 3, 4});
  }

  TEST_CASE("Knorm keeps the keys of small norm") {
    mock_cache cache(one_lane(2));
    cache.put(only, {0, 1, 2});
    cache.write(of::keys, only, 0, {3, 4});
    cache.write(of::keys, only, 1, {0, 0});
    cache.write(of::keys, only, 2, {1, 0});
    kv::host_executor exec;
    auto const policy = kv::policies::knorm({.budget = 2});
    auto [state, plan] = decided(exec, kv::signals{cache.lanes(), kv::keys_of(cache.view())}, policy, cache.view());
    check_digits(plan.scores(cache.lanes()).row(0), {-5, 0, -1}, 6);
    CHECK(listed(plan.keep(), 0) == ordinals{1, 2});
  }
}
