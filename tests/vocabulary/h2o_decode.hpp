// SPDX-License-Identifier: Apache-2.0
// Consumer 6: H2O in decode. Mass is state: it grows with every forward and moves with the entries.
#pragma once

#include "vocabulary/engine.hpp"

namespace vocabulary {

template <class Executor>
void decode_steps(Executor& exec, engine& model, int prompt, int steps) {
  auto const policy = kv::policies::h2o({.budget = 8});
  kv::cache cache = model.view();
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  for (int t = 0; t <= steps; ++t) {
    int const begin = t == 0 ? 0 : prompt + t - 1;
    int const end = prompt + t;
    kv::append(exec, cache, state, {.tokens = end - begin, .position = begin});
    kv::signals const in{cache.lanes, kv::keys_of(cache), model.rows_of(begin, end)};
    kv::observe(exec, policy, in, state);
    kv::decide(exec, policy, in, state, plan);
    kv::apply(exec, kv::compact{}, plan, cache, state);
  }
}

}  // namespace vocabulary
