// SPDX-License-Identifier: Apache-2.0
// The main of every benchmark: measures this machine's floors first and puts them at the head of the report.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "floors.hpp"

namespace {

std::string text(char const* form, double value) {
  char line[64];
  std::snprintf(line, sizeof line, form, value);
  return line;
}

void tell(int threads) {
  bench::floors::rates const& found = bench::floors::of(threads);
  std::string after = " (" + std::to_string(threads);
  after += threads == 1 ? " thread)" : " threads)";
  auto const say = [&](char const* what, char const* form, double value) {
    benchmark::AddCustomContext(what + after, text(form, value));
  };
  say("memcpy", "%.1f GB/s", found.memcpy / 1e9);
  say("non-temporal copy", "%.1f GB/s", found.stream / 1e9);
  say("read", "%.1f GB/s", found.read / 1e9);
  kvpolicy::isa const simd_level = kvpolicy::best_isa();
  say(bench::floors::fma_loop(simd_level).name, "%.0f GFLOP/s", found.fma / 1e9);
  if (found.dot > 0)
    say(bench::floors::peak_of(simd_level, kvpolicy::codec::bf16).name, "%.0f GFLOP/s", found.dot / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  bool lists = false;
  for (int i = 1; i < argc; ++i) lists = lists || std::strncmp(argv[i], "--benchmark_list_tests", 22) == 0;
  if (!lists) {
    benchmark::AddCustomContext("last-level cache", text("%.0f MiB", double(bench::last_level_bytes()) / (1 << 20)));
    benchmark::AddCustomContext("floors of", text("%.0f MB", double(bench::memory_bound_bytes()) / 1e6));
    tell(1);
    if (std::thread::hardware_concurrency() > 1) tell(2);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
