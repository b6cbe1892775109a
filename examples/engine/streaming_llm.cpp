// SPDX-License-Identifier: Apache-2.0
// StreamingLLM: decodes on and on in a cache of fixed size. Each step drops the oldest entry that is no sink, and the
// next token takes its row, so that no row moves.
#include <kvpolicy/kvpolicy.hpp>

#include "check.hpp"

namespace kv = kvpolicy;

int main() {
  int const budget = 24, prompt_tokens = 16;
  engine model(1, budget + 1);  // the entries that the policy keeps, and the new one
  full_cache_check check(model, 128);
  std::vector<int> const prompt = make_prompt(prompt_tokens);

  // example-begin streaming_llm
  // The cache as slots: each lane has a list of the rows in which its entries are, and the engine reads this list.
  kv::shape const shape{engine::layers, engine::query_heads, engine::kv_heads, engine::head_dim};
  kv::cache cache = kv::contiguous_cache_as_slots(model.k.data(), model.v.data(), shape, model.capacity,
                                                  model.counts.data(), model.positions.data(), model.rows.data());
  kv::overwrite const overwrite{kv::list_of(cache, model.rows.data())};
  kv::host_executor exec;
  auto const policy = kv::policies::streaming_llm_decode({.budget = budget, .sinks = 4});
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, overwrite);

  kv::append(exec, cache, state, {.tokens = prompt_tokens, .position = 0});
  int token = model.forward({prompt}).front();
  check.step();
  std::printf("text:");
  for (int step = 0; step < 48; ++step) {
    std::printf(" %d", token);
    kv::append(exec, cache, state, {.tokens = 1, .position = model.lengths[0]});
    token = model.forward({{token}}).front();
    check.step();
    // While a lane is within the budget, this drops nothing. The policy needs no signals, only the lanes.
    kv::decide(exec, policy, kv::signals{cache.lanes}, state, plan);
    kv::apply(exec, overwrite, plan, cache, state);  // edits the list: the next token takes the dropped entry's row
  }
  // example-end streaming_llm
  std::printf("\n");
  check.print_kept(0);
}
