// SPDX-License-Identifier: Apache-2.0
// Timing of benchmarks. In each round, everything that is compared runs in turn, so that disturbances of the machine
// affect all of it alike.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <kvpolicy/core/config.hpp>
#include <vector>

namespace KVPOLICY_NAMESPACE::bench {

[[nodiscard]] inline double median(std::vector<double> values) {
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The seconds that a call takes on the host.
struct host_clock {
  template <class Work>
  double operator()(Work const& work) const {
    auto const begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
};

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
/// untimed. `clock(work)` runs a work and returns its seconds. The time of an iteration is that of the first work.
template <class Clock, class Between, class... Work>
rounds in_turn_by(Clock const& clock, benchmark::State& state, Between const& between, Work const&... work) {
  (((void)between(), work()), ...);
  rounds made(sizeof...(work));
  for (auto _ : state) {
    std::size_t index = 0;
    double first = 0;
    auto const one = [&](auto const& each) {
      between();
      double const seconds = clock(each);
      benchmark::ClobberMemory();
      if (index == 0) first = seconds;
      made.note(index++, seconds);
    };
    (one(work), ...);
    state.SetIterationTime(first);
  }
  return made;
}
/// The same on the host.
template <class Between, class... Work>
rounds in_turn_after(benchmark::State& state, Between const& between, Work const&... work) {
  return in_turn_by(host_clock{}, state, between, work...);
}
/// The same with nothing to restore.
template <class... Work>
rounds in_turn(benchmark::State& state, Work const&... work) {
  return in_turn_after(state, [] {}, work...);
}

}  // namespace KVPOLICY_NAMESPACE::bench
