// SPDX-License-Identifier: Apache-2.0
// One step's promotion for a whole model: the oldest row of every lane's window goes on in its pages, against a copy of
// the same number of rows from other places of the same rings to other places of the same pages.
#include "dual_model.hpp"
#include "measure.hpp"

namespace {

namespace kv = kvpolicy;

using bench::dual_model, bench::lane_pages, bench::page, bench::window;
constexpr int lanes = bench::dual_lanes;
constexpr std::size_t row = bench::dual_row;

void promotion(benchmark::State& state, int admitted_percent, int threads) {
  dual_model model;
  kv::host_executor exec(threads);
  auto const policy = kv::policies::wg_kv({.window = window});
  auto held = kv::make_state(exec, policy, model.both);
  auto plans = kv::make_plan(exec, policy, model.both);
  std::vector<float> gates(lanes);
  bench::noise random(3);
  for (float& each : gates) each = random.uniform() * 100 < static_cast<float>(admitted_percent) ? 1.0f : 0.0f;
  kv::gate fresh;
  fresh.base = reinterpret_cast<std::byte const*>(gates.data());
  fresh.layer = 32;
  fresh.head = fresh.entry = 4;
  fresh.entries = 1;
  int position = 0;
  kv::promotion_stats stats;
  auto const step = [&] {
    kv::promote(exec, policy, kv::signals{model.both.window.lanes}, model.both, held, plans, 1, &stats);
    kv::append(exec, model.both.window, held.window, {.tokens = 1, .position = position++});
  };
  auto const write = [&] {
    kv::observe(exec, policy, kv::signals{model.both.window.lanes, fresh}, held.window);
    if (*std::max_element(model.count.begin(), model.count.end()) == lane_pages * page) model.empty();
  };
  for (int t = 0; t <= window; ++t) step(), write();
  auto const rows = std::count(gates.begin(), gates.end(), 1.0f);
  if (stats.promoted != rows) return state.SkipWithError("wrong result");

  auto const copy = [&] {  // rows half a ring away, into the other half of the lanes' pages
    exec.for_each(lanes, [&](int i, int) {
      if (gates[static_cast<std::size_t>(i)] == 0) return;
      std::size_t const from = row * static_cast<std::size_t>(i * window + (model.oldest + window / 2) % window);
      auto const other = static_cast<std::size_t>((i * 7 + 5) % lanes);
      std::size_t const to = row * (static_cast<std::size_t>(lanes * window) + other * lane_pages * page +
                                    static_cast<std::size_t>((model.count[other] + 256) % (lane_pages * page)));
      std::memcpy(model.k.data() + to, model.k.data() + from, row);
      std::memcpy(model.v.data() + to, model.v.data() + from, row);
    });
  };
  bench::rounds const taken = bench::in_turn_after(state, write, step, copy);
  state.counters["over_copy"] = taken.ratio(0, 1);
  state.counters["rows"] = static_cast<double>(2 * rows);
  state.counters["bytes/s"] = static_cast<double>(2 * rows) * row / taken.seconds(0);
}

void promotion_of(benchmark::State& state) {
  promotion(state, static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
}
BENCHMARK(promotion_of)
    ->Name("promotion")
    ->ArgNames({"percent", "threads"})
    ->ArgsProduct({{100, 25}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->Iterations(2000);

}  // namespace
