// SPDX-License-Identifier: Apache-2.0
// SnapKV on a contiguous cache. A C++20 compiler and the standard library are all that this program needs.
#include <algorithm>
#include <cstdio>
#include <kvpolicy/kvpolicy.hpp>
#include <numeric>
#include <vector>
namespace kv = kvpolicy;

int main() {
  constexpr kv::shape model{.layers = 2, .query_heads = 8, .kv_heads = 2, .head_dim = 64};
  constexpr int tokens = 500, capacity = 1024, lanes = 4;                     // a lane is one KV head of one layer
  std::vector<float> k(lanes * capacity * 64), v(k), q(2 * tokens * 8 * 64);  // your engine's memory
  std::vector<int> counts(lanes), positions(lanes * capacity), rows(tokens);
  std::iota(rows.begin(), rows.end(), 0);  // the positions of the query rows
  for (auto* tensor : {&k, &q})
    std::generate(tensor->begin(), tensor->end(), [x = 1u]() mutable { return float(x *= 69069u) / 4e9f - 0.5f; });

  kv::cache cache = kv::contiguous_cache(k.data(), v.data(), model, capacity, counts.data(), positions.data());
  kv::host_executor exec;
  auto const policy = kv::policies::snapkv({.budget = 64, .sinks = 4});
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, kv::compact{});  // nothing allocates after this

  kv::append(exec, cache, state, {.tokens = tokens, .position = 0});  // the forward wrote 500 rows of K and V
  kv::signals const in{cache.lanes, kv::keys_of(cache), kv::queries_of(q.data(), model, tokens, rows.data())};
  kv::observe(exec, policy, in, state);                // writes the state: the last 32 query rows
  kv::decide(exec, policy, in, state, plan);           // writes the plan: which entries each lane keeps
  kv::apply(exec, kv::compact{}, plan, cache, state);  // moves rows, positions and state together
  for (int const kept : counts) std::printf("a lane keeps %d of %d entries\n", kept, tokens);
}
