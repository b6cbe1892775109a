// SPDX-License-Identifier: Apache-2.0
// Composes a policy, observes a forward, decides, and compacts the cache. This is the README's first example.
#include "engine.hpp"

int main() {
  my_pool pool;
  my_forward forward(pool, 200);

  // example-begin compose
  kv::cache cache = pool.view();
  kv::host_executor exec;
  auto const policy = kv::eviction{
      .score = kv::snapkv{.window = 32, .pool = kv::max_pool{7}}, .protect = kv::sinks{4}, .budget = kv::per_lane{64}};
  auto state = kv::make_state(exec, policy, cache);               // here: the last 32 query rows
  auto plan = kv::make_plan(exec, policy, cache, kv::compact{});  // nothing allocates after this

  kv::append(exec, cache, state, {.tokens = 200, .position = 0});            // the engine wrote 200 rows
  kv::signals const in{cache.lanes, kv::keys_of(cache), forward.queries()};  // the signals that this engine has
  kv::observe(exec, policy, in, state);                                      // writes state only
  kv::decide(exec, policy, in, state, plan);                                 // writes the plan only
  kv::apply(exec, kv::compact{}, plan, cache, state);                        // rows, positions and state move together
  // example-end compose

  std::printf("%s\n", kv::to_string(policy).c_str());
  for (int i = 0; i < cache.lanes.size(); ++i) {
    kv::lane const this_lane = cache.lanes.at(i);
    int const* const position = cache.lanes.position.row(this_lane);
    std::printf("layer %d, head %d: %d of 200 entries, at %d %d %d %d %d %d ... %d\n", this_lane.layer, this_lane.head,
                *cache.lanes.count.row(this_lane), position[0], position[1], position[2], position[3], position[4],
                position[5], position[*cache.lanes.count.row(this_lane) - 1]);
  }
}
