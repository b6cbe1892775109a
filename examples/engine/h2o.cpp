// SPDX-License-Identifier: Apache-2.0
// H2O: adds up the attention that each entry receives, and drops the entries that received least. The attention is the
// engine's own: it is not computed twice.
#include <kvpolicy/kvpolicy.hpp>

#include "check.hpp"

namespace kv = kvpolicy;

int main() {
  int const budget = 24, prompt_tokens = 40;
  engine model(1, prompt_tokens);
  full_cache_check check(model, 128);
  std::vector<int> const prompt = make_prompt(prompt_tokens);

  // example-begin h2o
  kv::shape const shape{engine::layers, engine::query_heads, engine::kv_heads, engine::head_dim};
  kv::cache cache = kv::contiguous_cache_as_slots(model.k.data(), model.v.data(), shape, model.capacity,
                                                  model.counts.data(), model.positions.data(), model.rows.data());
  kv::overwrite const overwrite{kv::list_of(cache, model.rows.data())};
  kv::host_executor exec;
  // After the prompt many entries are dropped at once, later one in each step. Both policies record the same sums, so
  // that they share a state.
  auto const after_prompt = kv::policies::h2o({.budget = budget});
  auto const each_step = kv::policies::h2o_decode({.budget = budget});
  auto state = kv::make_state(exec, each_step, cache);
  auto prompt_plan = kv::make_plan(exec, after_prompt, cache, overwrite);
  auto plan = kv::make_plan(exec, each_step, cache, overwrite);

  auto const forward = [&](std::vector<int> const& tokens) {
    kv::append(exec, cache, state, {.tokens = static_cast<int>(tokens.size()), .position = model.lengths[0]});
    int const next = model.forward({tokens}).front();
    check.step();
    // Every forward is observed: its probabilities are added to the sums of the entries.
    kv::observe(exec, each_step,
                kv::signals{cache.lanes, kv::probabilities_of(model.probabilities.data(), shape, model.num_rows,
                                                              model.capacity, model.row_positions.data())},
                state);
    return next;
  };
  int token = forward(prompt);
  kv::decide(exec, after_prompt, kv::signals{cache.lanes}, state, prompt_plan);
  kv::apply(exec, overwrite, prompt_plan, cache, state);  // entries, positions and sums move together
  check.print_kept(0);
  std::printf("text:");
  for (int step = 0; step < 32; ++step) {
    std::printf(" %d", token);
    token = forward({token});
    kv::decide(exec, each_step, kv::signals{cache.lanes}, state, plan);
    kv::apply(exec, overwrite, plan, cache, state);
  }
  // example-end h2o
  std::printf("\n");
  check.print_kept(0);
}
