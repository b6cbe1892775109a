// SPDX-License-Identifier: Apache-2.0
// The one file of that program that is built with exceptions: none leaves it.
#include "evict.hpp"

#include <cstdio>

#include "../tiny_cache.hpp"

namespace kv = kvpolicy;

int evict(int budget, char* why_not, int size) noexcept {
  try {
    tiny::policy const policy{.score = {}, .protect = {1}, .budget = {budget}};
    tiny::memory memory;
    kv::cache cache = memory.view();
    kv::host_executor exec;
    auto state = kv::make_state(exec, policy, cache);
    auto plan = kv::make_plan(exec, policy, cache);
    kv::decide(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache)}, state, plan);
    kv::apply(exec, kv::compact{}, plan, cache, state);
    return memory.count;
  } catch (std::exception const& refusal) {
    std::snprintf(why_not, static_cast<std::size_t>(size), "%s", refusal.what());
    return -1;
  }
}
