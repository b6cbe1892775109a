// SPDX-License-Identifier: Apache-2.0
// How a benchmark on a GPU takes its time: CUDA events around the call alone, an L2 that holds nothing of it,
// everything that is compared run in turn, and the device's own copies and reads of memory as floors.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <kvpolicy/bench/read_words.cuh>
#include <thread>

#include "checks.hpp"
#include "cuda/device.cuh"
#include "measure.hpp"

namespace bench::gpu {

[[nodiscard]] inline int attribute(cudaDeviceAttr which) {
  int device = 0;
  checked("cudaGetDevice", cudaGetDevice(&device));
  return kv::detail::device_attribute(which, device);
}

inline void read_pass(stream const& on, std::byte const* from, std::size_t bytes, unsigned* to) {
  int const blocks = attribute(cudaDevAttrMultiProcessorCount) * 8;
  using kv::bench::detail::read_words;
  read_words<<<static_cast<unsigned>(blocks), 512, 0, on.get()>>>(reinterpret_cast<uint4 const*>(from), bytes / 16, to);
  checked("read_words", cudaGetLastError());
}

/// Seconds of `work` on the stream, by events. The host may be slow to call: put something long before it.
template <class Work>
double seconds_on(stream const& on, Work const& work) {
  static event const begin, end;
  begin.record(on);
  work();
  end.record(on);
  end.wait();
  return end.seconds_since(begin);
}

/// What memory of this device can do, in bytes a second: a copy, whose bytes read and written both count, and a read.
struct rates {
  double copy = 0, copy_median = 0, read = 0, read_median = 0;
};

/// 512 MB, twenty times each, once a process.
inline rates const& rates_of_device() {
  static rates const found = [] {
    constexpr std::size_t bytes = std::size_t{512} << 20;
    array<std::byte> const from(bytes), to(bytes);
    array<unsigned> const folded(1);
    from.poison(1);
    to.poison(2);
    stream const on;
    std::vector<double> copies, reads;
    for (int i = 0; i < 20; ++i) {
      copies.push_back(2.0 * bytes / seconds_on(on, [&] {
                         checked("cudaMemcpyAsync",
                                 cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, on.get()));
                       }));
      reads.push_back(1.0 * bytes / seconds_on(on, [&] { read_pass(on, from.data(), bytes, folded.data()); }));
    }
    return rates{*std::max_element(copies.begin(), copies.end()), median(copies),
                 *std::max_element(reads.begin(), reads.end()), median(reads)};
  }();
  return found;
}

/// Takes everything of ours out of L2: writes more than twice its size, and reads as much of something else, so that no
/// written line is left for the timed call to put away.
class cold_l2 {
 public:
  cold_l2() : written_(room()), read_(room()), folded_(1) { read_.poison(0); }
  void operator()(stream const& on) const {
    checked("cudaMemsetAsync", cudaMemsetAsync(written_.data(), ++times_ & 0xFF, written_.bytes(), on.get()));
    read_pass(on, read_.data(), read_.bytes(), folded_.data());
  }
  [[nodiscard]] static std::size_t room() {
    return static_cast<std::size_t>(attribute(cudaDevAttrL2CacheSize)) * 5 / 2 / 256 * 256 + 256;
  }

 private:
  array<std::byte> written_, read_;
  array<unsigned> folded_;
  mutable int times_ = 0;
};

/// Runs every work once for warmth, then in turn in each iteration, each with a cold L2; `between` puts things back
/// before, untimed. The iteration's time is that of the first. `check` is told what the device found wrong afterwards.
template <class Between, class... Work>
bench::rounds in_turn_after(benchmark::State& state, executor& exec, stream const& on, Between const& between,
                            Work const&... work) {
  cold_l2 const flush;
  (((void)between(), work()), ...);
  on.wait();
  bench::rounds made(sizeof...(work));
  for (auto _ : state) {
    std::size_t index = 0;
    double first = 0;
    auto const one = [&](auto const& each) {
      between();
      flush(on);
      double const seconds = seconds_on(on, each);
      if (index == 0) first = seconds;
      made.note(index++, seconds);
    };
    (one(work), ...);
    state.SetIterationTime(first);
  }
  exec.check();
  return made;
}

template <class... Work>
bench::rounds in_turn(benchmark::State& state, executor& exec, stream const& on, Work const&... work) {
  return in_turn_after(state, exec, on, [] {}, work...);
}

/// The same for many calls in one graph, on inputs that together are more than L2 holds: seconds of one call, in a
/// median. `work(i)` is call i.
template <class Work>
double in_a_graph(benchmark::State& state, executor& exec, stream const& on, int calls, Work const& work) {
  graph const all(on, [&] {
    for (int i = 0; i < calls; ++i) work(i);
  });
  cold_l2 const flush;
  all.launch(on);
  std::vector<double> taken;
  for (auto _ : state) {
    flush(on);
    taken.push_back(seconds_on(on, [&] { all.launch(on); }) / calls);
    state.SetIterationTime(taken.back());
  }
  exec.check();
  return median(taken);
}

/// Bytes a second of a call that must move `bytes`, and its share of the fastest copy and of the fastest read.
inline void report_share(benchmark::State& state, double bytes, double seconds) {
  state.counters["us"] = 1e6 * seconds;
  state.counters["bytes/s"] = bytes / seconds;
  state.counters["of_copy"] = bytes / seconds / rates_of_device().copy;
  state.counters["of_read"] = bytes / seconds / rates_of_device().read;
}

/// True if the device has `bytes` to spare; otherwise the benchmark says what it would have needed.
inline bool fits(benchmark::State& state, double bytes) {
  std::size_t there = 0, all = 0;
  checked("cudaMemGetInfo", cudaMemGetInfo(&there, &all));
  if (bytes * 1.05 + 1.5e9 < static_cast<double>(there)) return true;
  char line[112];
  std::snprintf(line, sizeof line, "n/a: needs %.1f GB of the device's memory, %.1f GB are free", bytes / 1e9,
                static_cast<double>(there) / 1e9);
  state.SkipWithError(line);
  return false;
}

/// The host's verbs on all processors: what results are checked against.
inline kv::host_executor& host() {
  static kv::host_executor exec(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
  return exec;
}

/// Runs a benchmark's body; what it throws becomes the benchmark's error.
template <class Body>
void guarded(benchmark::State& state, Body const& body) {
  try {
    body();
  } catch (std::exception const& wrong) {
    state.SkipWithError(wrong.what());
  }
}

}  // namespace bench::gpu
