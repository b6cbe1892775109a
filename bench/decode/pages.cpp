// SPDX-License-Identifier: Apache-2.0
// Decode steps that work on pages: WG-KV's `step`, which moves admitted tokens from a window to pages, and Quest's
// `select_pages`, which chooses the pages that attention reads. Each beside its floor, in the same run.
#include <algorithm>
#include <vector>

#include "../dual_model.hpp"
#include "decode_model.hpp"

namespace {

namespace kv = kvpolicy;
using bench::dual_lanes, bench::dual_row, bench::lane_pages, bench::window;

/// All lanes of a model that write a token, and admit the one that leaves the window in so many lanes of a hundred. The
/// floor copies as many rows from other places of the same windows to other places of the same pages.
void wg_kv(benchmark::State& state) {
  auto const percent = static_cast<float>(state.range(0));
  bench::dual_model model;
  kv::host_executor exec(static_cast<int>(state.range(1)));
  kv::cache_policy const policy{.admit = kv::policies::wg_kv({.window = window})};
  auto held = kv::make_state(exec, policy, model.both);
  auto plans = kv::make_plan(exec, policy, model.both);
  std::vector<float> gates(dual_lanes);
  bench::noise random(3);
  for (float& each : gates) each = random.uniform() * 100 < percent ? 1.0f : 0.0f;
  kv::gate fresh;
  fresh.base = reinterpret_cast<std::byte const*>(gates.data());
  fresh.layer = 32;
  fresh.head = fresh.entry = 4;
  fresh.entries = 1;
  int position = 0;
  kv::step_stats stats;
  bench::timed_steps taken;
  auto const step = [&] {
    taken.time(3, [&] {
      kv::step(
          exec, policy, kv::signals{model.both.window.lanes}, model.both, held, plans,
          {.tokens = 1, .position = position},
          [&] { kv::observe(exec, policy, kv::signals{model.both.window.lanes, fresh}, held); }, &stats);
    });
    ++position;
    if (*std::max_element(model.count.begin(), model.count.end()) == lane_pages * bench::page) model.empty();
  };
  auto const floor = [&] {
    exec.for_each(dual_lanes, [&](int i, int) {
      if (gates[static_cast<std::size_t>(i)] == 0) return;
      std::size_t const from = dual_row * static_cast<std::size_t>(i * window + (model.oldest + window / 2) % window);
      auto const other = static_cast<std::size_t>((i * 7 + 5) % dual_lanes);
      int const behind = (model.count[other] + 256) % (lane_pages * bench::page);
      std::size_t const to = dual_row * (static_cast<std::size_t>(dual_lanes * window) +
                                         other * lane_pages * bench::page + static_cast<std::size_t>(behind));
      std::memcpy(model.k.data() + to, model.k.data() + from, dual_row);
      std::memcpy(model.v.data() + to, model.v.data() + from, dual_row);
    });
  };
  for (int t = 0; t < window + 64; ++t) step();
  if (stats.promoted.promoted != std::count(gates.begin(), gates.end(), 1.0f)) {
    return state.SkipWithError("wrong result");
  }
  taken = {};
  for (auto _ : state) {
    step();
    double const seconds = taken.last_step();
    taken.floor(bench::seconds_of(floor));
    state.SetIterationTime(seconds);
  }
  taken.report(state, 1);
}
BENCHMARK(wg_kv)
    ->Name("report/decode/wg_kv_step")
    ->ArgNames({"percent", "threads"})
    ->ArgsProduct({{25, 100}, {1, 2}})
    ->UseManualTime()
    ->Iterations(400)
    ->Unit(benchmark::kMicrosecond);

/// A step of Quest for all layers: the new key extends the bounds of its page, and each lane chooses the pages that it
/// reads. The floor reads the bounds of every page that competes.
void quest(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0));
  auto const element = static_cast<kv::codec>(state.range(1));
  constexpr int steps = 60;
  int const bound = entries + steps + 4;
  if (!bench::has_memory(state, 1.2 * bench::model_cache::bytes(bench::whole_model, bound, element))) return;
  kv::selection const policy = kv::policies::quest({.budget = 512, .score = {.bounds = element}});
  kv::host_executor exec(static_cast<int>(state.range(2)));
  bench::model_cache model(bench::whole_model, bound, element);
  bench::memory asking(std::size_t{36} * 32 * 128 * static_cast<std::size_t>(kv::bytes_of(element)));
  bench::fill_elements(asking, element, 6, 11);
  kv::cache cache = model.view();
  auto held = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  for (int i = 0; i < cache.lanes.size(); ++i) *cache.lanes.count.row(cache.lanes.at(i)) = entries;
  int position = entries;
  kv::observe(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache)}, held);  // the bounds of the prompt
  bench::timed_steps taken;
  auto const step = [&] {
    taken.time(0, [&] { kv::append(exec, cache, held, {.tokens = 1, .position = position}); });
    kv::queries const row = kv::queries_of(asking.data(), element, bench::whole_model, 1, &position);
    kv::signals const in{cache.lanes, kv::keys_of(cache), row};
    taken.time(1, [&] { kv::observe(exec, policy, in, held); });
    taken.time(2, [&] { kv::select_pages(exec, policy, in, held, plan); });
    ++position;
  };
  auto const& bounds = held.columns()[0].rows;
  auto const page_bytes = static_cast<std::size_t>(held.columns()[0].about.bytes);
  auto const floor = [&] {
    std::size_t const bytes = static_cast<std::size_t>(position / policy.score.page) * page_bytes / 256 * 256;
    exec.for_each(dual_lanes - 8 * policy.dense_layers, [&](int i, int) {
      bench::floors::read_piece(kv::best_isa(), bounds.row({0, policy.dense_layers + i / 8, i % 8}), bytes);
    });
  };
  step();
  if (std::ssize(plan.keep().listed(dual_lanes - 1)) != 512 / policy.score.page) {
    return state.SkipWithError("wrong result");
  }
  taken = {};
  for (auto _ : state) {
    step();
    double const seconds = taken.last_step();
    taken.floor(bench::seconds_of(floor));
    state.SetIterationTime(seconds);
  }
  taken.report(state, 1);
  state.SetLabel(kv::name_of(element));
}
BENCHMARK(quest)
    ->Name("report/decode/quest_select")
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{4096, 32768}, {static_cast<int>(kv::codec::f32), static_cast<int>(kv::codec::bf16)}, {1, 2}})
    ->UseManualTime()
    ->Iterations(60)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
