// SPDX-License-Identifier: Apache-2.0
// The umbrella: a scorer whose verbs need scratch, and an applier that needs none.
#include <kvpolicy/kvpolicy.hpp>

#include "engine.hpp"

int run_snapkv() {
  small_engine engine(400);
  kv::cache cache = engine.view();
  kv::host_executor exec(2);
  kv::eviction const policy{.score = kv::snapkv{.window = 16}, .budget = kv::per_lane{64}};
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, kv::compact{});
  kv::signals const in{cache.lanes, kv::keys_of(cache), engine.queries()};
  kv::observe(exec, policy, in, state);
  kv::decide(exec, policy, in, state, plan);
  kv::apply(exec, kv::compact{}, plan, cache, state);
  return engine.count(0) == 64 && engine.count(1) == 64 ? 0 : 1;
}
