// SPDX-License-Identifier: Apache-2.0
// Timing of benchmarks. In each round, everything that is compared runs in turn, so that disturbances of the machine
// affect all of it alike. Ratios are medians over rounds.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "floors.hpp"

namespace bench {

/// The seconds of each work in each round.
class rounds {
 public:
  explicit rounds(std::size_t works) : taken_(works) {}
  void note(std::size_t work, double seconds) { taken_[work].push_back(seconds); }

  /// The median seconds of one work.
  [[nodiscard]] double seconds(std::size_t work) const { return median(taken_[work]); }

  /// The least seconds of one work: what it takes when nothing disturbs it.
  [[nodiscard]] double least(std::size_t work) const {
    return *std::min_element(taken_[work].begin(), taken_[work].end());
  }

  /// The median over rounds of the ratio of the time of `a` to that of `b`.
  [[nodiscard]] double ratio(std::size_t a, std::size_t b) const {
    return median_of([&](std::size_t i) { return taken_[a][i] / taken_[b][i]; });
  }

  /// The speedup of `b` (two threads) over `a` (one thread), divided by the speedup of `d` over `c`; the median over
  /// rounds.
  [[nodiscard]] double share(std::size_t a, std::size_t b, std::size_t c, std::size_t d) const {
    return median_of([&](std::size_t i) { return taken_[a][i] / taken_[b][i] / (taken_[c][i] / taken_[d][i]); });
  }

 private:
  template <class Of>
  [[nodiscard]] double median_of(Of const& of) const {
    std::vector<double> values;
    for (std::size_t i = 0; i < taken_.front().size(); ++i) values.push_back(of(i));
    return median(values);
  }
  std::vector<std::vector<double>> taken_;
};

/// Runs every work once to warm up, and then all in turn in each iteration. `between` restores data before each,
/// untimed. The time of an iteration is that of the first work.
template <class Between, class... Work>
rounds in_turn_after(benchmark::State& state, Between const& between, Work const&... work) {
  (((void)between(), work()), ...);
  rounds made(sizeof...(work));
  for (auto _ : state) {
    std::size_t index = 0;
    double first = 0;
    auto const one = [&](auto const& each) {
      between();
      double const seconds = seconds_of(each);
      benchmark::ClobberMemory();
      if (index == 0) first = seconds;
      made.note(index++, seconds);
    };
    (one(work), ...);
    state.SetIterationTime(first);
  }
  return made;
}

template <class... Work>
rounds in_turn(benchmark::State& state, Work const&... work) {
  return in_turn_after(state, [] {}, work...);
}

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
