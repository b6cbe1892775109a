// SPDX-License-Identifier: Apache-2.0
// A budget that lanes share, and an applier that only hides.
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/decision/eviction.hpp>
#include <kvpolicy/layout/mask.hpp>
#include <kvpolicy/ops/host/append_column.hpp>
#include <kvpolicy/ops/host/entries.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/lists.hpp>
#include <kvpolicy/ops/host/map.hpp>
#include <kvpolicy/ops/host/mask_rows.hpp>
#include <kvpolicy/ops/host/row_norm.hpp>
#include <kvpolicy/ops/host/top_k.hpp>
#include <kvpolicy/scorers/knorm.hpp>

#include "engine.hpp"

int run_knorm() {
  small_engine engine(400);
  kv::cache cache = engine.view();
  kv::host_executor exec;
  kv::eviction const policy{.score = kv::knorm{}, .budget = kv::per_layer{100}};
  std::vector<unsigned char> hidden(std::size_t{small_engine::heads} * small_engine::bound, 1);
  kv::mask how{.list = engine.slots()};
  how.rows.rows = {reinterpret_cast<std::byte*>(hidden.data()), 0, 0, small_engine::bound};
  how.rows.form = kv::mask_form::boolean;
  how.rows.units = small_engine::bound;
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, how);
  kv::decide(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache)}, state, plan);
  kv::apply(exec, how, plan, cache, state);
  return engine.count(0) + engine.count(1) == 200 ? 0 : 1;
}
