// SPDX-License-Identifier: Apache-2.0
// Uses a scorer of six lines like any shipped one.
#include "engine.hpp"
#include "value_aware.hpp"

int main() {
  // example-begin own_scorer
  my_pool pool;
  my_forward forward(pool, 200);
  kv::cache cache = pool.view();
  kv::host_executor exec;
  auto const policy =
      kv::eviction{.score = value_aware{}, .protect = kv::sinks{4} | kv::recent{16}, .budget = kv::per_lane{48}};
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  kv::append(exec, cache, state, {.tokens = 200, .position = 0});
  kv::signals const in{cache.lanes, kv::keys_of(cache), kv::values_of(cache), forward.queries()};
  kv::decide(exec, policy, in, state, plan);
  // example-end own_scorer
  for (int segment = 0; segment < plan.keep().segments(); ++segment) {
    auto const kept = plan.keep().listed(segment);
    std::printf("lane %d keeps %zu:", segment, kept.size());
    for (std::size_t i = 0; i < 12; ++i) std::printf(" %d", kept[i]);
    std::printf(" ...\n");
  }
}
