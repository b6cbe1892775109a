// SPDX-License-Identifier: Apache-2.0
// What a planned decision costs the host: the calls of decide and apply, which launch and wait for nothing, against as
// many launches of a kernel that does nothing.
#include <chrono>

#include "cuda/cases.cuh"

namespace {

namespace kv = kvpolicy;
namespace gpu = bench::gpu;

constexpr int entries = 4096, rows = 32;

/// A policy on a model's cache, decided and applied again and again; all entries are there before each time.
template <class Policy>
void host_cost(benchmark::State& state, Policy const& policy) {
  gpu::stream const on;
  gpu::executor exec(on);
  bench::model_cache model(bench::whole_model, entries, kv::codec::bf16);
  bench::model_queries const queries(bench::whole_model, entries, rows, kv::codec::bf16);
  gpu::device_cache const device(model);
  gpu::device_queries const asking(bench::whole_model, rows, queries.view());
  kv::cache cache = device.view();
  auto held = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  auto const step = [&] {
    kv::signals const in{cache.lanes, kv::keys_of(cache), kv::values_of(cache), kv::queries{asking.view()},
                         kv::recent_queries{asking.view()}};
    kv::decide(exec, policy, in, held, plan);
    kv::apply(exec, kv::compact{}, plan, cache, held);
  };
  int const launches = exec.launches_of(step);
  exec.check();
  if (device.counts().get() != std::vector<int>(288, entries / 4)) return state.SkipWithError("wrong result");
  device.reset(on);
  gpu::graph const captured(on, step);
  auto const launch_nothing = [&] {
    for (int i = 0; i < launches; ++i) exec.launch(kv::launch_shape{}, kv::detail::empty_kernel{});
  };
  std::vector<double> eager, empty, replayed, of_device;
  for (auto _ : state) {
    device.reset(on);
    on.wait();  // before the clock starts: a full queue would make the host wait
    eager.push_back(bench::seconds_of(step));
    state.SetIterationTime(eager.back());
    on.wait();
    empty.push_back(bench::seconds_of(launch_nothing));
    device.reset(on);
    on.wait();
    replayed.push_back(bench::seconds_of([&] { captured.launch(on); }));
    device.reset(on);
    of_device.push_back(gpu::seconds_on(on, [&] { captured.launch(on); }));
  }
  exec.check();
  state.counters["launches"] = launches;
  state.counters["us"] = 1e6 * bench::median(eager);
  state.counters["empty_us"] = 1e6 * bench::median(empty);
  state.counters["graph_us"] = 1e6 * bench::median(replayed);
  state.counters["device_us"] = 1e6 * bench::median(of_device);
}

void host_cost_knorm(benchmark::State& state) {
  gpu::guarded(state, [&] { host_cost(state, kv::policies::knorm({.budget = entries / 4})); });
}
void host_cost_snapkv(benchmark::State& state) {
  gpu::guarded(state, [&] { host_cost(state, kv::policies::snapkv({.budget = entries / 4})); });
}
BENCHMARK(host_cost_knorm)->Name("host_cost/knorm")->Iterations(200)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(host_cost_snapkv)->Name("host_cost/snapkv")->Iterations(100)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
