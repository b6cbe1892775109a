// The verbs that visit every entry once: pool, map, row_norm, ring_append.
#include "defaults.hpp"

namespace {

struct scored_layer {
  explicit scored_layer(int entries) : layer(entries), cache(layer.view()), values(layer.position.size()) {
    bench::fill_scores(values, 5);
    scores = kvpolicy::contiguous_scores(cache.who, kvpolicy::granularity::lane, values.data(), entries);
    exec.reserve(kvpolicy::implementation<kvpolicy::ops::pool_t, kvpolicy::host>::scratch(cache.shape, entries));
  }
  bench::layer_cache layer;
  kvpolicy::cache cache;
  std::vector<float> values;
  kvpolicy::score_view scores;
  kvpolicy::host_executor exec;
};

void pool(benchmark::State& state) {
  scored_layer on(static_cast<int>(state.range(0)));
  for (auto _ : state)
    kvpolicy::ops::pool(on.exec, kvpolicy::max_pool{static_cast<int>(state.range(1))}, on.scores, 32);
  bench::report_bytes(state, on.values.size() * sizeof(float));
}
BENCHMARK(pool)->ArgNames({"entries", "width"})->ArgsProduct({{4096, 32768}, {7, 15}})->UseRealTime();

void map(benchmark::State& state) {
  scored_layer on(static_cast<int>(state.range(0)));
  for (auto _ : state) kvpolicy::ops::map(on.exec, on.scores, kvpolicy::random::uniform{42});
  bench::report_bytes(state, on.values.size() * sizeof(float));
}
BENCHMARK(map)->ArgNames({"entries"})->Arg(4096)->Arg(32768)->UseRealTime();

void row_norm(benchmark::State& state) {
  scored_layer on(static_cast<int>(state.range(0)));
  for (auto _ : state) kvpolicy::ops::row_norm(on.exec, kvpolicy::keys_of(on.cache), kvpolicy::negated{}, on.scores);
  bench::report_bytes(state, on.layer.k.size() * sizeof(float));
}
BENCHMARK(row_norm)->ArgNames({"entries"})->Arg(4096)->Arg(32768)->UseRealTime();

void ring_append(benchmark::State& state) {
  scored_layer on(4096);
  auto const policy = kvpolicy::policies::snapkv({.budget = 1024});
  auto held = kvpolicy::make_state(on.exec, policy, on.cache);
  bench::layer_queries const rows(4096, static_cast<int>(state.range(0)));
  kvpolicy::signals const in{on.cache.who, rows.signal()};
  for (auto _ : state) kvpolicy::observe(on.exec, policy, in, held);
  bench::report_bytes(state, rows.values.size() * sizeof(float));
}
BENCHMARK(ring_append)->ArgNames({"rows"})->Arg(1)->Arg(32)->UseRealTime();

}  // namespace
