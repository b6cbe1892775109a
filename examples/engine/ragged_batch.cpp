// SPDX-License-Identifier: Apache-2.0
// A batch of three sequences whose prompts differ in length: SnapKV decides about all of them in one call.
#include <kvpolicy/kvpolicy.hpp>

#include "check.hpp"

namespace kv = kvpolicy;

int main() {
  engine model(3, 128);
  full_cache_check check(model, 128);
  token_batch const prompts{make_prompt(64, 1), make_prompt(17, 2), make_prompt(40, 3)};
  token_batch texts(3);

  // example-begin ragged_batch
  kv::shape const shape{engine::layers, engine::query_heads, engine::kv_heads, engine::head_dim};
  kv::cache cache = kv::contiguous_cache({.k = model.k.data(),
                                          .v = model.v.data(),
                                          .shape = shape,
                                          .sequences = model.sequences,
                                          .capacity = model.capacity,
                                          .counts = model.counts.data(),
                                          .positions = model.positions.data()});
  kv::host_executor exec;
  auto const policy = kv::policies::snapkv({.budget = 24, .score = {.window = 8}});
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, kv::compact{});

  auto const forward = [&](token_batch const& tokens) {
    // Each sequence gets its own number of new entries, at its own position. A sequence without new tokens rests.
    for (int s = 0; s < model.sequences; ++s) {
      int const count = static_cast<int>(tokens[static_cast<std::size_t>(s)].size());
      kv::append(exec, cache, state, {.sequence = s, .tokens = count, .position = model.lengths[s]});
    }
    std::vector<int> const next = model.forward(tokens);
    check.step();
    return next;
  };
  std::vector<int> next = forward(prompts);

  // The tensor of query rows has as many rows for each sequence as the longest prompt has tokens, and `valid_rows` says
  // how many of them are valid.
  kv::signals const in{cache.lanes, kv::keys_of(cache),
                       kv::queries_of(model.queries.data(), shape, model.num_rows, model.row_positions.data(),
                                      {.sequences = model.sequences, .valid_rows = model.valid_rows.data()})};
  kv::observe(exec, policy, in, state);
  kv::decide(exec, policy, in, state, plan);  // the second prompt is within the budget, so all of it is kept
  kv::apply(exec, kv::compact{}, plan, cache, state);
  for (int s = 0; s < model.sequences; ++s) check.print_kept(s);

  // The second sequence ends after 8 tokens, and then rests.
  for (int step = 0; step < 16; ++step) {
    token_batch tokens{{next[0]}, {next[1]}, {next[2]}};
    if (step >= 8) tokens[1].clear();
    for (std::size_t s = 0; s < tokens.size(); ++s) texts[s].insert(texts[s].end(), tokens[s].begin(), tokens[s].end());
    next = forward(tokens);
  }
  // example-end ragged_batch
  for (std::vector<int> const& text : texts) {
    std::printf("text:");
    for (int const token : text) std::printf(" %d", token);
    std::printf("\n");
  }
}
