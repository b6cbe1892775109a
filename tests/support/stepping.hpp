// SPDX-License-Identifier: Apache-2.0
// One sequence that decodes under a cache policy with an admission: numbers of each new token are told when it is
// written.
#pragma once

#include "support/dual_engine.hpp"
#include "support/test.hpp"

namespace kvpolicy_test {

/// One number for each lane and position, the same whenever it is asked.
inline float number_of(int lane, int position, unsigned salt) {
  unsigned const mixed =
      (static_cast<unsigned>(position) * 2654435761u) ^ (static_cast<unsigned>(lane) * 40503u + salt);
  return static_cast<float>((mixed * 2246822519u) >> 8) / static_cast<float>(1u << 24);
}
inline float gate_of(int lane, int position) { return number_of(lane, position, 1); }
inline float log_beta_of(int lane, int position) { return -0.02f * number_of(lane, position, 77) - 1e-4f; }

/// The newest `tokens` of four lanes, two of each layer, as a signal: numbers that lie lane after lane.
template <class Signal>
Signal newest_numbers(std::vector<float> const& values, int tokens = 1) {
  Signal fresh;
  fresh.base = reinterpret_cast<std::byte const*>(values.data());
  fresh.entry = 4;
  fresh.head = tokens * 4;
  fresh.layer = fresh.head * 2;
  fresh.entries = tokens;
  return fresh;
}

/// 60 steps of a policy without an admission, by an engine that gives all pages before it appends. After each the
/// visitor gets the step, the pages and the state.
template <class Policy, class Visit>
void step_without_window(Policy const& policy, Visit const& visit) {
  kv::host_executor exec;
  dual_engine engine({.rows = 4, .page = 4, .pages = 200, .bound = 128});
  kv::dual_cache both = engine.view();
  kv::cache& all = both.pages.entries;
  for (int i = 0; i < 4; ++i) {
    for (int page = 0; page < 32; ++page) both.pages.table.row(all.lanes.at(i))[page] = 4 + i * 32 + page;
  }
  auto [state, plans] = state_and_plan(exec, policy, all);
  for (int t = 0; t < 60; ++t) {
    kv::step(exec, policy, kv::signals{all.lanes}, all, state, plans, {.tokens = 1, .position = t}, [&] {
      std::vector<float> betas(4);
      for (int i = 0; i < 4; ++i) {
        kv::lane const this_lane = all.lanes.at(i);
        dual_engine::write(all, this_lane, *all.lanes.count.row(this_lane) - 1, t);
        betas[as_size(i)] = log_beta_of(i, t);
      }
      kv::observe(exec, policy, kv::signals{all.lanes, newest_numbers<kv::log_beta>(betas)}, state);
    });
    visit(t, all, state);
  }
}

/// One sequence under any cache policy with an admission; numbers of each new token are told when it is written.
template <class Policy>
class stepping {
 public:
  explicit stepping(Policy const& steps)
      : policy(steps),
        engine({.rows = 8, .page = 4, .pages = 400, .bound = 256}),
        both(engine.view()),
        held(kv::make_state(exec, policy, both)),
        plans(kv::make_plan(exec, policy, both)) {}

  void step() {
    kv::step(
        exec, policy, kv::signals{both.window.lanes}, both, held, plans, {.tokens = 1, .position = length},
        [&] { forward(); }, &told);
    ++length;
  }
  [[nodiscard]] std::vector<int> pages_of(int lane) const {
    kv::lane const this_lane = both.window.lanes.at(lane);
    int const* const position = both.pages.entries.lanes.position.row(this_lane);
    return {position, position + *both.pages.entries.lanes.count.row(this_lane)};
  }

  Policy policy;
  kv::host_executor exec;
  dual_engine engine;
  kv::dual_cache both;
  kv::dual_state<kv::host_executor> held;
  kv::step_plan<kv::host_executor> plans;
  kv::step_stats told;
  int length = 0;
  std::vector<std::vector<int>> read;  ///< pages that each lane read in the latest step
  bool lists_read = true;

 private:
  template <class Signal>
  Signal numbers(float (*of)(int, int), std::vector<float>& values) {
    for (int i = 0; i < engine.lanes(); ++i) values[as_size(i)] = of(i, length);
    return newest_numbers<Signal>(values);
  }

  void forward() {
    for (int i = 0; i < engine.lanes(); ++i) {
      kv::lane const this_lane = both.window.lanes.at(i);
      dual_engine::write(both.window, this_lane, *both.window.lanes.count.row(this_lane) - 1, length);
    }
    kv::observe(
        exec, policy,
        kv::signals{both.window.lanes, numbers<kv::gate>(gate_of, gates_), numbers<kv::log_beta>(log_beta_of, betas_)},
        held);
    if constexpr (!std::is_same_v<decltype(policy.select), kv::omitted>) {
      select();
    }
  }

  void select() {
    for (std::size_t i = 0; i < query_.size(); ++i) query_[i] = number_of(static_cast<int>(i), length, 5) - 0.5f;
    kv::queries rows;
    rows.base = reinterpret_cast<std::byte const*>(query_.data());
    rows.dims = 4;
    rows.layer = 4 * 16;
    rows.head = 16;
    rows.row = 16;
    rows.heads = 4;
    rows.rows = 1;
    rows.position = {&length, 0, 0, 0};
    read.clear();
    for (int layer = 0; layer < 2; ++layer) {  // as an engine does: layer by layer
      kv::lanes const batch = both.pages.entries.lanes.layers_only(layer, layer + 1);
      kv::select_pages(exec, policy, kv::signals{batch, rows}, held.pages, plans);
      for (int i = 0; lists_read && i < 2; ++i) {
        auto const listed = plans.selection->keep().listed(i);
        read.emplace_back(listed.begin(), listed.end());
      }
    }
  }

  std::vector<float> gates_ = std::vector<float>(4);
  std::vector<float> betas_ = std::vector<float>(4);
  std::vector<float> query_ = std::vector<float>(32);
};

}  // namespace kvpolicy_test
