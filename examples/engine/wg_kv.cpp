// SPDX-License-Identifier: Apache-2.0
// WG-KV: every token enters the window of its lane. When it leaves the window, the lane admits it to its pages if the
// token's write gate is large enough, and drops it otherwise.
#include <kvpolicy/kvpolicy.hpp>

#include "check.hpp"
#include "gated_engine.hpp"

/// The write gates of the newest token, one for each lane. A model with WG-KV computes them by a trained layer; here a
/// gate is the sigmoid of one channel of the key.
tensor<float> write_gates(gated_engine& model) {
  tensor<float> gates(engine::lanes);
  for (int i = 0; i < engine::lanes; ++i) {
    cached_entry const newest = model.entries(0, i / engine::kv_heads, i % engine::kv_heads).back();
    gates[i] = 1 / (1 + std::exp(-newest.k[engine::head_dim - 1]));
  }
  return gates;
}

int main() {
  gated_engine model(96, 16);
  full_cache_check check(model, 128);

  // example-begin wg_kv
  kv::dual_cache both = model.view();  // the windows and the pages of all lanes
  kv::host_executor exec;
  auto const policy = kv::policies::wg_kv({.window = 16, .threshold = 0.7f});
  auto state = kv::make_state(exec, policy, both);
  auto plan = kv::make_plan(exec, policy, both);

  auto const forward = [&](int token) {
    // The oldest token leaves the window before the new one overwrites it. Each lane decides by the recorded gate.
    kv::promote(exec, policy, kv::signals{both.window.lanes}, both, state, plan, 1);
    kv::append(exec, both.window, state.window, {.tokens = 1, .position = model.lengths[0]});
    int const next = model.forward({{token}}).front();  // attention reads the pages and the window
    check.step();

    tensor<float> const gates = write_gates(model);
    kv::gate const new_gates{kv::entry_numbers_of(gates.data(), both.window.shape, 1)};
    kv::observe(exec, policy, kv::signals{both.window.lanes, new_gates}, state.window);
    return next;
  };
  int token = 0;
  for (int const each : make_prompt(48)) token = forward(each);
  std::printf("text:");
  for (int step = 0; step < 32; ++step) {
    std::printf(" %d", token);
    token = forward(token);
  }
  // example-end wg_kv
  std::printf("\n");
  check.print_kept(0);
}
