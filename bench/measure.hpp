// SPDX-License-Identifier: Apache-2.0
// Timing of benchmarks, in rounds as those of a user's scorer, and what they report.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <kvpolicy/bench/rounds.hpp>
#include <string>
#include <vector>

#include "floors.hpp"

namespace bench {

using kvpolicy::bench::in_turn;
using kvpolicy::bench::in_turn_after;
using kvpolicy::bench::rounds;

/// Reports the bytes per second of an iteration that must touch `bytes`, and their ratio to the fastest copy of this
/// process and to its fastest pass of any kind.
inline void report_rate(benchmark::State& state, double bytes, double seconds, int threads) {
  state.counters["bytes/s"] = bytes / seconds;
  state.counters["of_copy"] = bytes / seconds / floors::of(threads).copy();
  state.counters["of_floor"] = bytes / seconds / floors::of(threads).best();
}

/// Floors below this count as this: nobody waits for less.
inline constexpr double least_floor = 20e-6;

/// Reports the share of its floor that a verb reaches, of the least times of both.
inline void report_share(benchmark::State& state, rounds const& taken, std::size_t verb, std::size_t floor) {
  state.counters["share"] = std::max(taken.least(floor), least_floor) / taken.least(verb);
  state.counters["verb_us"] = 1e6 * taken.least(verb);
  state.counters["floor_us"] = 1e6 * taken.least(floor);
}

/// Bytes of free memory; 0 if the system does not report them.
inline double free_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    double kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %lf kB", &kib) == 1) return kib * 1024;
  }
  return 0;
}

/// True if more than `bytes` are free; otherwise the benchmark is skipped, with a message of its needs.
inline bool has_memory(benchmark::State& state, double bytes) {
  double const there = free_bytes();
  if (there == 0 || bytes * 1.1 + 1e9 < there) return true;
  char line[96];
  std::snprintf(line, sizeof line, "n/a: needs %.1f GB of memory, %.1f GB are free", bytes / 1e9, there / 1e9);
  state.SkipWithError(line);
  return false;
}

}  // namespace bench
