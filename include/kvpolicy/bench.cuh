// SPDX-License-Identifier: Apache-2.0
// Benchmarks of a scorer on the host and on a device, by Google Benchmark, in a source that nvcc compiles.
#pragma once

#include <cstdio>
#include <exception>
#include <kvpolicy/bench/device_rows.cuh>
#include <string>

/// The macros of <kvpolicy/bench.hpp> register rows on the device, too: a row of the name `.../device` beside each of
/// the host's. A decision is captured into a graph, and its time is that between two events, with a level-2 cache that
/// holds nothing of it. Without a device one line says so, and the rows of the host run.
///
///     #include <kvpolicy/bench.cuh>
///     KVPOLICY_BENCHMARK(mine{.power = 2});
///     BENCHMARK_MAIN();
///
/// `make` of `KVPOLICY_BENCHMARK_WITH` is also called with a cache in memory of the device, and its signals are then
/// there, too.
#undef KVPOLICY_BENCHMARK_NAMED
#define KVPOLICY_BENCHMARK_NAMED(number, ...) \
  [[maybe_unused]] static bool const kvpolicy_benchmark_##number = ::kvpolicy::bench::register_with_device(__VA_ARGS__)

namespace KVPOLICY_NAMESPACE::bench {
namespace detail {

/// True if there is a device. The first call says so if there is none.
inline bool has_device() {
  static bool const there = [] {
    int devices = 0;
    bool const any = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
    if (!any) std::fputs("kvpolicy: there is no GPU, so only the rows of the host run\n", stderr);
    return any;
  }();
  return there;
}

/// Registers the rows of a scorer on the device, if there is one. What a row throws becomes its error.
template <class Score, class Make>
void register_device_rows(Score const& score, Make const& make) {
  if (!has_device()) return;
  for_each_row(to_string(score), [&](shape_of_row const& row, std::string const& name) {
    benchmark::RegisterBenchmark((name + "/device").c_str(),
                                 [=](benchmark::State& run) {
                                   try {
                                     measure_on_device(run, score, make, row);
                                   } catch (std::exception const& wrong) {
                                     run.SkipWithError(wrong.what());
                                   }
                                 })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  });
}

/// Registers the rows of `knorm` and `snapkv` on the device, once in a program.
inline bool register_peers_on_device() {
  register_device_rows(knorm{}, nothing_more{});
  register_device_rows(snapkv{}, nothing_more{});
  return true;
}
inline bool const has_peers_on_device = register_peers_on_device();

}  // namespace detail

/// Registers the rows of a scorer on the host and on the device.
template <scorer Score, class Make = detail::nothing_more>
bool register_with_device(Score const& score, Make const& make = {}) {
  detail::register_device_rows(score, make);
  return register_scorer(score, make);
}

}  // namespace KVPOLICY_NAMESPACE::bench
