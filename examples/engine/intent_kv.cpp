// SPDX-License-Identifier: Apache-2.0
// IntentKV: two turns of an agent's session. After each turn's prompt the policy decides which tokens to keep by what
// the turns have asked for. Dropped tokens are redirected in place, so that a prefix cache still matches.
#include <kvpolicy/kvpolicy.hpp>

#include "check.hpp"

namespace kv = kvpolicy;

int main() {
  engine model(1, 96);
  full_cache_check check(model, 160);

  // example-begin intent_kv
  kv::shape const shape{engine::layers, engine::query_heads, engine::kv_heads, engine::head_dim};
  kv::cache cache = kv::contiguous_cache_as_slots(model.k.data(), model.v.data(), shape, model.capacity,
                                                  model.counts.data(), model.positions.data(), model.rows.data());
  // The map of the session: the row of every position so far. A dropped position names the dead row, which is the last
  // one and belongs to no token. All lanes keep the same tokens, so that they share one map.
  std::vector<int> map(160);
  int const dead = model.capacity - 1;
  kv::dead_slot<> const in_place{.list = kv::list_of(cache, model.rows.data()), .map = {map.data()}, .dead = dead};
  kv::host_executor exec;
  // Each turn's mean query is scaled to length 1, so that the memory of the turn before weighs 0.61 of the present one.
  auto const policy = kv::policies::intent_kv({.budget = 40, .score = {.prefix = 4, .normalize_encoding = true}});
  auto state = kv::make_state(exec, policy, cache);  // the memory of the session's turns; keep it with the session
  auto plan = kv::make_plan(exec, policy, cache, in_place);

  auto const forward = [&](std::vector<int> const& tokens) {
    // The rows after the last entry of the list are free. The map names those that the new tokens take.
    int const count = static_cast<int>(tokens.size()), position = model.lengths[0];
    std::copy_n(model.rows.data() + model.counts[0], count, map.data() + position);
    kv::append(exec, cache, state, {.tokens = count, .position = position});
    int const next = model.forward({tokens}).front();
    check.step();
    return next;
  };
  for (int turn = 0; turn < 2; ++turn) {
    int token = forward(make_prompt(turn == 0 ? 64 : 32, static_cast<std::uint32_t>(turn) + 1));
    // The rows of this turn's prompt, the last 8 of which are the message that asks for something.
    int const span_begin = model.num_rows - 8, span_end = model.num_rows;
    kv::turn_queries const asked{
        kv::queries_of(model.queries.data(), shape, model.num_rows, model.row_positions.data()), &span_begin,
        &span_end};
    kv::signals const in{cache.lanes, kv::keys_of(cache), asked};
    kv::observe(exec, policy, in, state);  // once in each turn: adds it to the memory
    kv::decide(exec, policy, in, state, plan);
    kv::apply(exec, in_place, plan, cache, state);
    check.print_kept(0);
    std::printf("text:");
    for (int step = 0; step < 12; ++step) {
      std::printf(" %d", token);
      token = forward({token});
    }
    std::printf("\n");
  }
  // example-end intent_kv
  std::printf("%d of %d positions are redirected to the dead row\n",
              static_cast<int>(std::count(map.begin(), map.begin() + model.lengths[0], dead)), model.lengths[0]);
}
