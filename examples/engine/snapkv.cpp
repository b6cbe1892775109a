// SPDX-License-Identifier: Apache-2.0
// SnapKV: reads the prompt, decides once which entries of each lane to keep, moves them together, and decodes on.
#include <kvpolicy/kvpolicy.hpp>

#include "check.hpp"

namespace kv = kvpolicy;

int main() {
  engine model(1, 128);
  full_cache_check check(model, 128);
  int const prompt_tokens = 64;
  std::vector<int> const prompt = make_prompt(prompt_tokens);

  // example-begin snapkv
  // The cache is the engine's own memory: nothing is copied.
  kv::shape const shape{engine::layers, engine::query_heads, engine::kv_heads, engine::head_dim};
  kv::cache cache = kv::contiguous_cache(model.k.data(), model.v.data(), shape, model.capacity, model.counts.data(),
                                         model.positions.data());
  kv::host_executor exec;
  auto const policy = kv::policies::snapkv({.budget = 24, .score = {.window = 8}});
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, kv::compact{});

  // The prompt: this `append` replaces the engine's own. It adds the new entries to the counts and positions of all
  // lanes, and the engine then writes their rows.
  kv::append(exec, cache, state, {.tokens = prompt_tokens, .position = 0});
  int token = model.forward({prompt}).front();
  check.step();

  // One decision. It reads the keys, and the query rows of the forward that has just ended.
  kv::signals const in{cache.lanes, kv::keys_of(cache),
                       kv::queries_of(model.queries.data(), shape, model.num_rows, model.row_positions.data())};
  kv::observe(exec, policy, in, state);
  kv::decide(exec, policy, in, state, plan);
  kv::apply(exec, kv::compact{}, plan, cache, state);  // the counts fall, and each entry keeps its position
  check.print_kept(0);

  // The rest of the text: the next position is the length of the text, not the number of entries.
  std::printf("text:");
  for (int step = 0; step < 24; ++step) {
    std::printf(" %d", token);
    kv::append(exec, cache, state, {.tokens = 1, .position = model.lengths[0]});
    token = model.forward({{token}}).front();
    check.step();
  }
  // example-end snapkv
  std::printf("\n");
}
