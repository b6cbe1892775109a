// SPDX-License-Identifier: Apache-2.0
// The fewest headers that can decide: a scorer that needs no scratch.
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/decision/eviction.hpp>
#include <kvpolicy/ops/host/entries.hpp>
#include <kvpolicy/ops/host/map.hpp>
#include <kvpolicy/ops/host/top_k.hpp>
#include <kvpolicy/scorers/streaming_llm.hpp>

#include "engine.hpp"

int run_streaming_llm() {
  small_engine engine(400);
  kv::cache cache = engine.view();
  kv::host_executor exec;
  kv::eviction const policy{.score = kv::streaming_llm{}, .budget = kv::per_lane{100}};
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  kv::decide(exec, policy, kv::signals{cache.lanes}, state, plan);
  return plan.keep().listed(1).size() == 100 && plan.keep().listed(1)[4] == 304 ? 0 : 1;
}
