// attention_mass of a window over one layer, in multiply-adds per second and share of reading the keys once; the peer
// is the plain double loop that the tests trust, in float.
#include "defaults.hpp"

namespace {

void attention_mass(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0));
  int const window = static_cast<int>(state.range(1));
  bench::layer_cache layer(entries);
  bench::layer_queries const rows(entries, window);
  kvpolicy::cache const cache = layer.view();
  kvpolicy::host_executor exec(static_cast<int>(state.range(2)));
  exec.reserve(
      kvpolicy::implementation<kvpolicy::ops::attention_mass_t, kvpolicy::host>::scratch(cache.shape, entries));
  std::vector<float> out(static_cast<std::size_t>(bench::heads) * static_cast<std::size_t>(entries));
  auto const scores = kvpolicy::contiguous_scores(cache.who, kvpolicy::granularity::lane, out.data(), entries);
  auto const run = [&] { kvpolicy::ops::attention_mass(exec, kvpolicy::keys_of(cache), rows.signal(), {}, scores); };
  run();
  double sum = 0;
  for (float const value : out) sum += static_cast<double>(value);
  if (std::abs(sum / (window * bench::heads) - 1) > 1e-3) return state.SkipWithError("masses of a row must sum to one");
  for (auto _ : state) run();
  auto const products = 1.0 * bench::heads * bench::group * window * entries * bench::dims;
  state.counters["FMA/s"] =
      benchmark::Counter(products * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  bench::report_bytes(state, layer.k.size() * sizeof(float));
}
BENCHMARK(attention_mass)
    ->ArgNames({"entries", "window", "threads"})
    ->ArgsProduct({{4096, 32768}, {1, 32}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void plain_loop(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0));
  int const window = static_cast<int>(state.range(1));
  bench::layer_cache layer(entries);
  bench::layer_queries const rows(entries, window);
  std::vector<float> mass(static_cast<std::size_t>(entries)), logit(mass);
  for (auto _ : state) {
    for (int head = 0; head < bench::heads * bench::group; ++head) {
      float const* const keys = layer.k.data() + std::ptrdiff_t{head / bench::group} * entries * bench::dims;
      for (int r = 0; r < window; ++r) {
        float const* const query = rows.values.data() + (std::ptrdiff_t{head} * window + r) * bench::dims;
        float sum = 0;
        for (int e = 0; e <= entries - window + r; ++e) {
          float x = 0;
          for (int d = 0; d < bench::dims; ++d) x += query[d] * keys[std::ptrdiff_t{e} * bench::dims + d];
          sum += logit[static_cast<std::size_t>(e)] = std::exp(x / std::sqrt(static_cast<float>(bench::dims)));
        }
        for (int e = 0; e <= entries - window + r; ++e)
          mass[static_cast<std::size_t>(e)] += logit[static_cast<std::size_t>(e)] / sum;
      }
    }
    benchmark::DoNotOptimize(mass.data());
  }
  bench::report_bytes(state, layer.k.size() * sizeof(float));
}
BENCHMARK(plain_loop)
    ->ArgNames({"entries", "window"})
    ->ArgsProduct({{4096}, {1, 32}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
