// SPDX-License-Identifier: Apache-2.0
// Consumer 1: SnapKV under chunked prefill. The window outlives a chunk, in a recorder's ring.
#pragma once

#include "vocabulary/engine.hpp"

namespace vocabulary {

/// Prefills in chunks of any size and decides once at the end, by the last rows wherever they came from.
template <class Executor>
void prefill_in_chunks(Executor& exec, engine& model, int tokens, int chunk) {
  auto const policy = kv::policies::snapkv({.budget = 16, .score = {.window = 8, .pool = kv::max_pool{3}}});
  kv::cache cache = model.view();
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  for (int begin = 0; begin < tokens; begin += chunk) {
    int const end = begin + chunk < tokens ? begin + chunk : tokens;
    kv::append(exec, cache, state, {.tokens = end - begin, .position = begin});
    for (int layer = 0; layer < engine::layers; ++layer) {  // as each layer's forward is done
      kv::signals const in{cache.lanes.layers_only(layer, layer + 1), kv::keys_of(cache), model.rows_of(begin, end)};
      kv::observe(exec, policy, in, state);
    }
  }
  kv::decide(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache)}, state, plan);
  kv::apply(exec, kv::compact{}, plan, cache, state);
}

}  // namespace vocabulary
