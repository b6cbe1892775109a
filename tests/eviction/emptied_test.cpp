// SPDX-License-Identifier: Apache-2.0
// A pick by threshold that keeps nothing of a lane.
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

TEST_SUITE("core/scores: report") {
  TEST_CASE("a threshold that keeps nothing of a lane is counted, and an empty lane is not") {
    mock_cache cache({.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .bound = 12});
    std::vector<int> at = up_to(12);
    for (int i = 0; i < 2; ++i) {  // the second layer is empty
      cache.put(cache.lane_at(i), at);
      for (int e = 0; e < 12; ++e)
        cache.write(of::keys, cache.lane_at(i), e, {i == 0 && e == 4 ? 1.0f : 3.0f, 0, 0, 0});
    }
    kv::host_executor exec;
    kv::cache const view = cache.view();
    auto const decided = [&](auto const& policy) {
      auto [state, plan] = kvpolicy_test::decided(exec, kv::signals{view.lanes, kv::keys_of(view)}, policy, view);
      return plan.report();
    };
    kv::at_least const pick{.least = -2, .unbounded = true};
    kv::eviction const policy{.score = kv::knorm{}, .budget = kv::unlimited{}, .pick = pick};
    CHECK(decided(policy) == kv::report{.triggered = 2, .emptied = 1});
    CHECK(decided(kv::any_policy(policy)) == kv::report{.triggered = 2, .emptied = 1});
    CHECK(decided(kv::parse("knorm | sinks(1) | at_least(-2, unbounded=true)")) == kv::report{.triggered = 2});
    CHECK(decided(kv::parse("knorm | reduce_lanes(layer, max) | at_least(2, unbounded=true)")).emptied == 1);
    kv::report sum{.emptied = 1};
    CHECK((sum += kv::report{.emptied = 2}).emptied == 3);
    // An admission that lets nothing of a chunk in is no lane that lost its entries.
    kv::admission const admits{.score = kv::knorm{}, .window = 4, .pick = pick};
    CHECK(decided(admits).emptied == 0);
  }
}

}  // namespace
