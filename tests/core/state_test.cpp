// SPDX-License-Identifier: Apache-2.0
// State: columns by lane, forks, and whose signal wins.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

mock_options some_shape(int bound = 8) {
  return {.model = {.layers = 3, .query_heads = 4, .kv_heads = 2, .head_dim = 4}, .sequences = 2, .bound = bound};
}

/// The bytes of every column of every lane.
std::vector<std::byte> bytes_of(kv::state<kv::host_executor> const& state) {
  std::vector<std::byte> all;
  for (kv::recorded_column const& each : state.columns()) {
    for (int i = 0; i < state.lanes().size(); ++i) {
      auto const* const row = each.rows.row(state.lanes().at(i));
      all.insert(all.end(), row, row + each.rows.head);
    }
  }
  return all;
}

template <class Policy>
void observe_some(kv::host_executor& exec, Policy const& policy, mock_cache& cache,
                  kv::state<kv::host_executor>& state) {
  current_queries queries(cache, kv::codec::f32, 3, 3);
  for (int s = 0; s < 2; ++s) {
    for (int r = 0; r < 3; ++r) queries.set_position(s, r, 3 + r);
  }
  for (int s = 0; s < 2; ++s) state.history().truncate(s, 1);  // these rows are shown several times
  kv::observe(exec, policy, kv::signals{cache.lanes(), kv::keys_of(cache.view()), kv::queries{queries.view()}}, state);
}

}  // namespace

TEST_SUITE("core/state") {
  TEST_CASE("a policy without recorders has a state without columns") {
    mock_cache cache(some_shape());
    kv::host_executor exec;
    CHECK(kv::make_state(exec, kv::policies::knorm(), cache.view()).columns().empty());
    CHECK(kv::make_state(exec, kv::policies::h2o(), cache.view()).columns().size() == 1);
    CHECK(kv::make_state(exec, kv::policies::snapkv(), cache.view()).columns().size() == 3);
  }

  TEST_CASE("lanes' rows of a column do not overlap, and a state of some layers serves just those") {
    mock_cache cache(some_shape());
    kv::host_executor exec;
    kv::cache view = cache.view();
    view.lanes = view.lanes.layers_only(1, 3);
    auto const state = kv::make_state(exec, kv::policies::snapkv({.score = {.window = 5}}), view);
    for (kv::recorded_column const& each : state.columns()) {
      for (int i = 0; i < view.lanes.size(); ++i) {
        CHECK(each.rows.row(view.lanes.at(i)) == each.rows.row(view.lanes.at(0)) + i * each.rows.head);
      }
    }
    CHECK(state.columns()[0].rows.head == 5 * 2 * 4 * 4);  // rows, group, channels, bytes
  }

  TEST_CASE("a fork holds what the other holds, and goes its own way from there") {
    mock_cache cache(some_shape());
    for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), {0, 1, 2, 3, 4, 5});
    kv::host_executor exec;
    auto const check = [&](auto const& policy) {
      auto state = kv::make_state(exec, policy, cache.view());
      auto fork = kv::make_state(exec, policy, cache.view());
      auto const fresh = bytes_of(fork);
      observe_some(exec, policy, cache, state);
      CHECK(bytes_of(state) != fresh);
      fork.copy_from(state);
      CHECK(bytes_of(fork) == bytes_of(state));
      auto const before = bytes_of(state);
      observe_some(exec, policy, cache, fork);
      CHECK(bytes_of(fork) != before);
      CHECK(bytes_of(state) == before);
    };
    check(kv::policies::h2o());
    check(kv::policies::snapkv());
  }

  TEST_CASE("a fork of another policy, shape or batch is refused and changes nothing") {
    mock_cache cache(some_shape());
    mock_cache longer(some_shape(9));
    kv::host_executor exec;
    auto h2o = kv::make_state(exec, kv::policies::h2o(), cache.view());
    auto const before = bytes_of(h2o);
    char const* const text =
        "state::copy_from: other = another kind of state, but both are made for one policy, shape and batch";
    auto const snapkv = kv::make_state(exec, kv::policies::snapkv(), cache.view());
    auto const large = kv::make_state(exec, kv::policies::h2o(), longer.view());
    kv::cache part = cache.view();
    part.lanes = part.lanes.layers_only(0, 2);
    auto const some = kv::make_state(exec, kv::policies::h2o(), part);
    CHECK_THROWS_WITH_AS(h2o.copy_from(snapkv), text, kv::invalid_argument);
    CHECK_THROWS_WITH_AS(h2o.copy_from(large), text, kv::invalid_argument);
    CHECK_THROWS_WITH_AS(h2o.copy_from(some), text, kv::invalid_argument);
    CHECK(bytes_of(h2o) == before);
  }

  TEST_CASE("the engine's own signal wins over a recorded one") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 4});
    cache.put({0, 0, 0}, {0, 1, 2, 3});
    kv::host_executor exec;
    kv::eviction const policy{.score = kv::h2o{.recent = 0}, .budget = kv::per_lane{2}};
    auto [state, plan] = state_and_plan(exec, policy, cache.view());
    auto* const recorded = reinterpret_cast<float*>(state.columns()[0].rows.row({0, 0, 0}));
    for (int e = 0; e < 4; ++e) recorded[e] = static_cast<float>(e);
    float const given[] = {9, 1, 1, 8};
    kv::decide(exec, policy, kv::signals{cache.lanes()}, state, plan);
    CHECK(listed(plan.keep(), 0) == std::vector<int>{2, 3});
    kv::decide(exec, policy, kv::signals{cache.lanes(), kv::attention_mass{{given, 0, 0, 0}}}, state, plan);
    CHECK(listed(plan.keep(), 0) == std::vector<int>{0, 3});
  }
}
