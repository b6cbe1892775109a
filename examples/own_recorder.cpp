// SPDX-License-Identifier: Apache-2.0
// Uses a recorder of a user's own through two forwards: a prompt, and one token.
#include <cstdlib>

#include "decayed_mass.hpp"
#include "engine.hpp"

int main() {
  my_pool pool;
  my_forward forward(pool, 200);
  kv::cache cache = pool.view();
  kv::host_executor exec;
  auto const policy =
      kv::eviction{.score = decayed_h2o{.keep = 0.5f}, .protect = kv::recent{8}, .budget = kv::per_lane{24}};
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, kv::compact{});
  kv::append(exec, cache, state, {.tokens = 200, .position = 0});
  kv::observe(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache), forward.queries()}, state);

  auto const recorded = [&](int entry) { return state.columns_from(0).table<float const>(0).row({0, 0, 0})[entry]; };
  float const before = recorded(5);
  kv::append(exec, cache, state, {.tokens = 1, .position = 200});
  int const position = 200;
  kv::queries row = forward.queries();  // the first row of the same memory stands for the token's
  row.rows = 1;
  row.position = {&position};
  kv::signals const in{cache.lanes, kv::keys_of(cache), row};
  kv::observe(exec, policy, in, state);
  bool const fades = recorded(5) > 0.5f * before && recorded(5) < 0.5f * before + 4.0f;  // four query heads, one row
  std::printf("the attention of the prompt %s\n", fades ? "has halved, and that of the token was added" : "IS WRONG");

  kv::decide(exec, policy, in, state, plan);
  kv::apply(exec, kv::compact{}, plan, cache, state);
  for (int i = 0; i < cache.lanes.size(); ++i) {
    kv::lane const lane = cache.lanes.at(i);
    int const* const position_of = cache.lanes.position.row(lane);
    std::printf("layer %d, head %d keeps %d of 201 entries, the oldest at %d\n", lane.layer, lane.head,
                *cache.lanes.count.row(lane), position_of[0]);
  }
  return fades ? EXIT_SUCCESS : EXIT_FAILURE;
}
