// SPDX-License-Identifier: Apache-2.0
// compact with tables that lanes share because they decide together, and with some of the layers.

#include "support/scored_by.hpp"

namespace {

using namespace kvpolicy_test;

/// One number for each position, the same for all lanes that decide together.
struct hash {
  float operator()(float, kv::entry at) const { return static_cast<float>(at.position * 7919 % 101); }
};

/// Decides about some layers, carries it out, and checks every row of every lane.
template <kv::granularity Decides>
void compacts_together() {
  mock_options shape = any_mock();
  shape.rows = content::fingerprint;
  shape.shared_entries = true;
  if (Decides == kv::granularity::layer) shape.model.layers = 1;
  RC_LOG() << shape << '\n';
  filled_cache cache(shape);
  kv::host_executor exec(*rc::gen::element(1, 3));
  kv::eviction const policy{
      .score = scored_by<hash, Decides>{}, .protect = kv::sinks{2}, .budget = kv::per_lane{shape.bound / 2}};
  auto [state, plan] = state_and_plan(exec, policy, cache.view());
  kv::cache view = cache.view();
  std::vector<std::vector<int>> expected;
  kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
  for (int i = 0; i < cache.lane_count(); ++i) {
    kv::lane const this_lane = cache.lane_at(i);
    std::vector<int> positions;
    int const segment = kv::segment_of(view.lanes, Decides, i);
    for (int const e : plan.keep().listed(segment)) positions.push_back(cache.position(this_lane, e));
    for (int d = cache.committed(this_lane); d < cache.count(this_lane); ++d)
      positions.push_back(cache.position(this_lane, d));
    expected.push_back(positions);
    int sinks = 0;
    for (int const each : cache.positions(this_lane, cache.committed(this_lane))) sinks += each < 2 ? 1 : 0;
    int const kept = static_cast<int>(plan.keep().listed(segment).size());
    RC_ASSERT(kept == std::min(cache.committed(this_lane), std::max(sinks, shape.bound / 2)));
  }
  kv::apply(exec, kv::compact{}, plan, view, state);
  for (int i = 0; i < cache.lane_count(); ++i) {
    kv::lane const this_lane = cache.lane_at(i);
    RC_ASSERT(cache.positions(this_lane, cache.count(this_lane)) == expected[as_size(i)]);
    for (int e = 0; e < cache.count(this_lane); ++e) {
      RC_ASSERT(cache.row(of::keys, this_lane, e) ==
                cache.fingerprint(of::keys, this_lane, cache.position(this_lane, e)));
      RC_ASSERT(cache.row(of::values, this_lane, e) ==
                cache.fingerprint(of::values, this_lane, cache.position(this_lane, e)));
    }
  }
}

}  // namespace

TEST_SUITE("layout/compact") {
  TEST_CASE("lanes that decide together move together, and their shared tables change once") {
    holds("one keep set for a token of all layers", [] { compacts_together<kv::granularity::sequence>(); });
    holds("one keep set for the heads of a layer", [] { compacts_together<kv::granularity::layer>(); });
  }

  TEST_CASE("only the decided layers move") {
    mock_cache cache(
        {.model = {.layers = 3, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .rows = content::fingerprint});
    for (int layer = 0; layer < 3; ++layer) cache.put({0, layer, 0}, {0, 1, 2, 3, 4, 5});
    kv::host_executor exec;
    auto const policy = kv::policies::streaming_llm({.budget = 3, .sinks = 1});
    kv::cache view = cache.view();
    auto [state, plan] = decided(exec, kv::signals{view.lanes.layers_only(1, 2)}, policy, view);
    kv::apply(exec, kv::compact{}, plan, view, state);
    CHECK(cache.positions({0, 1, 0}, cache.count({0, 1, 0})) == std::vector<int>{0, 4, 5});
    for (int const layer : {0, 2}) {
      CHECK(cache.count({0, layer, 0}) == 6);
      for (int e = 0; e < 6; ++e) {
        CHECK(cache.row(of::keys, {0, layer, 0}, e) == cache.fingerprint(of::keys, {0, layer, 0}, e));
      }
    }
  }

  TEST_CASE("a lane whose budget is nothing and which forces nothing becomes empty, and can grow again") {
    mock_cache cache({.rows = content::fingerprint});
    cache.put({0, 0, 0}, {0, 1, 2});
    kv::host_executor exec;
    kv::eviction const policy{.score = kv::knorm{}, .budget = kv::per_lane{0}};
    kv::cache view = cache.view();
    auto [state, plan] = state_and_plan(exec, policy, view);
    kv::signals const in{view.lanes, kv::keys_of(view)};
    kv::decide(exec, policy, in, state, plan);
    kv::apply(exec, kv::compact{}, plan, view, state);
    CHECK(cache.count({0, 0, 0}) == 0);
    kv::decide(exec, policy, in, state, plan);
    kv::apply(exec, kv::compact{}, plan, view, state);
    kv::append(exec, view, state, {.tokens = 1, .position = 3});
    CHECK(cache.position({0, 0, 0}, 0) == 3);
  }
}
