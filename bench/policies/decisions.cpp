// A whole decision and its compaction, one layer of 8 lanes, a quarter kept.
#include "defaults.hpp"

namespace {

template <class Policy>
void run(benchmark::State& state, Policy const& policy, int rows) {
  int const entries = static_cast<int>(state.range(0));
  bench::layer_cache layer(entries);
  kvpolicy::cache cache = layer.view();
  kvpolicy::host_executor exec(2);
  auto held = kvpolicy::make_state(exec, policy, cache);
  auto plan = kvpolicy::make_plan(exec, policy, cache);
  bench::layer_queries const queries(entries, rows);
  kvpolicy::signals const in{cache.who, kvpolicy::keys_of(cache), kvpolicy::values_of(cache), queries.signal()};
  kvpolicy::observe(exec, policy, in, held);
  for (auto _ : state) {
    kvpolicy::decide(exec, policy, in, held, plan);
    kvpolicy::apply(exec, kvpolicy::compact{}, plan, cache, held);
    state.PauseTiming();
    if (layer.count[0] != entries / 4) return state.SkipWithError("wrong result");
    layer.reset();
    state.ResumeTiming();
  }
  bench::report_bytes(state, layer.k.size() * sizeof(float));
}

void streaming_llm(benchmark::State& state) {
  run(state, kvpolicy::policies::streaming_llm({.budget = static_cast<int>(state.range(0)) / 4}), 1);
}
void snapkv(benchmark::State& state) {
  run(state, kvpolicy::policies::snapkv({.budget = static_cast<int>(state.range(0)) / 4}), 32);
}
void h2o(benchmark::State& state) {
  run(state, kvpolicy::policies::h2o({.budget = static_cast<int>(state.range(0)) / 4}), 1);
}
void knorm(benchmark::State& state) {
  run(state, kvpolicy::policies::knorm({.budget = static_cast<int>(state.range(0)) / 4}), 1);
}
void random(benchmark::State& state) {
  run(state, kvpolicy::policies::random({.budget = static_cast<int>(state.range(0)) / 4}), 1);
}

BENCHMARK(streaming_llm)->ArgName("entries")->Arg(4096)->Arg(32768)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(snapkv)->ArgName("entries")->Arg(4096)->Arg(32768)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(h2o)->ArgName("entries")->Arg(4096)->Arg(32768)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(knorm)->ArgName("entries")->Arg(4096)->Arg(32768)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(random)->ArgName("entries")->Arg(4096)->Arg(32768)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
