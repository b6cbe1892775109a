// SPDX-License-Identifier: Apache-2.0
// A recorder whose verb needs scratch, and a pick that drops one entry.
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/decision/eviction.hpp>
#include <kvpolicy/layout/overwrite.hpp>
#include <kvpolicy/ops/host/append_column.hpp>
#include <kvpolicy/ops/host/argmin.hpp>
#include <kvpolicy/ops/host/attention_mass.hpp>
#include <kvpolicy/ops/host/entries.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/lists.hpp>
#include <kvpolicy/ops/host/map.hpp>
#include <kvpolicy/ops/host/units.hpp>
#include <kvpolicy/scorers/h2o.hpp>

#include "engine.hpp"

int run_h2o() {
  small_engine engine(400);
  kv::cache cache = engine.view();
  kv::host_executor exec;
  kv::eviction const policy{.score = kv::h2o{}, .budget = kv::per_lane{100}, .pick = kv::lowest_one{}};
  kv::overwrite const how{.list = engine.slots()};
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, how);
  kv::signals const in{cache.lanes, kv::keys_of(cache), engine.queries()};
  kv::observe(exec, policy, in, state);
  kv::decide(exec, policy, in, state, plan);
  kv::apply(exec, how, plan, cache, state);
  return engine.count(0) == 399 && engine.count(1) == 399 ? 0 : 1;
}
