// SPDX-License-Identifier: Apache-2.0
// Decode loops on a contiguous cache: what to call in each step, and how little each step writes.
#include <algorithm>
#include <cstdio>
#include <kvpolicy/kvpolicy.hpp>
#include <vector>

namespace kv = kvpolicy;

namespace {

constexpr kv::shape model{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 8};
constexpr int budget = 100, slack = 63, capacity = budget + slack + 1, lanes = 4, steps = 1000;

/// The engine's memory: K and V [layer][head][capacity][8], and what the library notes of each lane.
struct memory {
  std::vector<float> k = std::vector<float>(lanes * capacity * 8), v = k;
  std::vector<int> counts = std::vector<int>(lanes), positions = std::vector<int>(lanes * capacity);
  std::vector<kv::lane_order> orders = std::vector<kv::lane_order>(lanes);

  kv::cache view() {
    return kv::contiguous_cache(
        {.k = k.data(),
         .v = v.data(),
         .shape = model,
         .capacity = capacity,
         .counts = counts.data(),
         .positions = positions.data(),
         .order = kv::axis_order::hnd,
         .lane_orders = orders.data()});  // a step of lowest_one then costs the same at any budget
  }
  /// What a forward does: the rows of the new token, behind the last entry of each lane.
  void forward(int token) {
    for (int i = 0; i < lanes; ++i) {
      auto const at = static_cast<std::size_t>((i * capacity + counts[static_cast<std::size_t>(i)]) * 8);
      for (std::size_t d = 0; d < 8; ++d) {
        k[at + d] = static_cast<float>((token * 37 + i * 11 + static_cast<int>(d) * 5) % 101);
        v[at + d] = static_cast<float>(token);
      }
    }
  }
};

/// Runs a loop, and prints what it kept and how many rows of V it moved.
template <class Policy, class Applier>
void decode(char const* name, Policy const& policy, Applier const& how) {
  memory engine;
  kv::cache cache = engine.view();
  kv::host_executor exec;
  auto state = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache, how);
  long moved = 0;
  for (int token = 0; token < steps; ++token) {
    // example-begin
    engine.forward(token);
    kv::append(exec, cache, state, {.tokens = 1, .position = token});
    kv::signals const in{cache.lanes, kv::keys_of(cache)};
    kv::observe(exec, policy, in, state);
    if (!kv::due(policy, cache)) continue;  // every lane is within its budget and slack
    std::vector<float> const before = engine.v;
    kv::decide(exec, policy, in, state, plan);
    kv::apply(exec, how, plan, cache, state);
    // example-end
    for (std::size_t row = 0; row < before.size(); row += 8) moved += before[row] != engine.v[row] ? 1 : 0;
  }
  std::vector<int> held(engine.positions.begin(), engine.positions.begin() + engine.counts[0]);
  std::sort(held.begin(), held.end());
  std::printf("%-24s %3d entries a lane, positions %d, %d .. %d; rows of V moved a step: %.2f\n", name,
              engine.counts[0], held[0], held[1], held.back(), static_cast<double>(moved) / steps);
}

}  // namespace

int main() {
  decode("StreamingLLM, one a step", kv::policies::streaming_llm_decode({.budget = budget}), kv::overwrite{});
  decode("Knorm, one a step", kv::policies::knorm_decode({.budget = budget}), kv::overwrite{});
  kv::eviction const in_batches{
      .score = kv::streaming_llm{}, .budget = kv::per_lane{budget}, .trigger = kv::over_budget{slack}};
  decode("StreamingLLM, 64 at once", in_batches, kv::compact{});
}
