// SPDX-License-Identifier: Apache-2.0
// The flow that docs/engines.md shows, in a pool laid out as SGLang's.

#include "engines/mock_pools.hpp"

TEST_SUITE("engines/recipe") {
  TEST_CASE("a request of an engine with slots is shortened by its list") {
    using namespace kvpolicy_test;
    sglang_mock pool({.dims = 8, .value_dims = 8, .sequences = 1, .bound = 64});
    for (std::size_t i = 0; i < pool.lane_count(); ++i) {
      for (int e = 0; e < 48; ++e) encode(kv::codec::f32, e % 7, pool.element(of::keys, pool.lane_at(i), e, 0, 0));
    }
    int* const req_to_token = pool.table().data;
    std::vector<int> freed(64), freed_count(1);
    int const next_slot = pool.units() - 1;
    kv::host_executor exec;

    // example-begin recipe
    kv::cache cache = pool.view();  // what kv::engines::sglang{...}.view(lanes) returned
    auto const policy = kv::eviction{.score = kv::reduce_lanes{.score_of = kv::knorm{}},  // one list: lower it
                                     .protect = kv::sinks{4} | kv::recent{8},
                                     .budget = kv::per_lane{32}};
    auto const how = kv::engines::bind<kv::engines::sglang>(
        policy, kv::list_rewrite<>{.list = {req_to_token, 64}, .freed = {{freed.data(), 64}, {freed_count.data(), 1}}});
    auto state = kv::make_state(exec, policy, cache);
    auto plan = kv::make_plan(exec, policy, cache);

    kv::append(exec, cache, state, {.tokens = 48, .position = 0});  // after a forward
    kv::decide(exec, how.policy, kv::signals{cache.lanes, kv::keys_of(cache)}, state, plan);
    kv::apply(exec, how, plan, cache, state);

    // The allocator takes the freed slots back; the next token is entry 32, at position 48, in whatever slot it gives.
    req_to_token[*cache.lanes.count.data] = next_slot;
    // example-end recipe

    CHECK(*cache.lanes.count.data == 32);
    CHECK(freed_count[0] == 16);
    for (int i = 0; i < 16; ++i) {
      CHECK(std::find(req_to_token, req_to_token + 32, freed[as_size(i)]) == req_to_token + 32);
    }
    CHECK(pool.position({0, 0, 0}, 31) == 47);
  }
}
