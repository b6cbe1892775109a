// SPDX-License-Identifier: Apache-2.0
// An applier of lists, whose scratch depends on the pool.
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/decision/eviction.hpp>
#include <kvpolicy/layout/list_rewrite.hpp>
#include <kvpolicy/ops/host/append_column.hpp>
#include <kvpolicy/ops/host/entries.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/lists.hpp>
#include <kvpolicy/ops/host/map.hpp>
#include <kvpolicy/ops/host/top_k.hpp>
#include <kvpolicy/scorers/random.hpp>

#include "engine.hpp"

int run_random() {
  small_engine engine(400);
  kv::cache cache = engine.view();
  kv::host_executor exec;
  kv::eviction const policy{.score = kv::random_scores{}, .budget = kv::per_lane{100}};
  kv::list_rewrite<> const how{.list = engine.slots()};
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, how);
  kv::decide(exec, policy, kv::signals{cache.lanes}, state, plan);
  kv::apply(exec, how, plan, cache, state);
  return engine.count(0) == 100 && engine.count(1) == 100 ? 0 : 1;
}
