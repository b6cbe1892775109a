// compact against a copy of the rows that must move: a quarter of the entries, spread evenly.
#include "defaults.hpp"

namespace {

void compact(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0));
  bench::layer_cache layer(entries);
  kvpolicy::cache cache = layer.view();
  kvpolicy::host_executor exec(static_cast<int>(state.range(1)));
  auto const policy = kvpolicy::policies::random({.budget = entries / 4});
  auto held = kvpolicy::make_state(exec, policy, cache);
  auto plan = kvpolicy::make_plan(exec, policy, cache);
  kvpolicy::decide(exec, policy, kvpolicy::signals{cache.who}, held, plan);
  for (auto _ : state) {
    kvpolicy::apply(exec, kvpolicy::compact{}, plan, cache, held);
    state.PauseTiming();
    if (layer.count[0] != entries / 4) return state.SkipWithError("wrong result");
    layer.reset();
    state.ResumeTiming();
  }
  bench::report_bytes(state, layer.k.size() * sizeof(float) / 2);  // a quarter of K and of V
}
BENCHMARK(compact)
    ->ArgNames({"entries", "threads"})
    ->ArgsProduct({{4096, 32768}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
