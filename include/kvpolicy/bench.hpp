// SPDX-License-Identifier: Apache-2.0
// Benchmarks of a scorer, by Google Benchmark: how long a decision takes, and how far that is from reading the rows.
//
// This header is not part of the umbrella, because it needs <benchmark/benchmark.h>; link benchmark::benchmark.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <kvpolicy/bench/layer.hpp>
#include <kvpolicy/bench/rounds.hpp>
#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>

/// Benchmarks a scorer, and `knorm` and `snapkv` beside it, in a program that ends with `BENCHMARK_MAIN();`:
///
///     #include <kvpolicy/bench.hpp>
///     KVPOLICY_BENCHMARK(mine{.power = 2});
///     BENCHMARK_MAIN();
///
/// There is a row for each number of entries (4,096 and 32,768), element type (f32, f16, bf16), layout and number of
/// threads (1 and all). Each decides about one layer of 32 query heads and 8 KV heads of 128 channels, of whose entries
/// a quarter stays. In every iteration the scorer, `knorm` over the same rows, and a plain read of them run in turn, so
/// that what disturbs the machine disturbs all of them:
///
/// - Time: that of the decision. `--benchmark_filter=` chooses rows by their names.
/// - `of_read`: the time of reading once what the scorer's `needs` name, as a part of the decision's time.
/// - `over_knorm`: the decision's time for each of these bytes, over that of `knorm` for each byte of a key.
///
/// Signals that are given are keys, values, the query rows of the last 32 tokens, and what the scorer's recorders
/// observe of them. A scorer that needs another signal is given it by `KVPOLICY_BENCHMARK_WITH(scorer, make)`:
/// make(cache) returns a `std::tuple` of signals, whose memory it owns.
///
/// A source that nvcc compiles includes <kvpolicy/bench.cuh> instead, and has rows on the device, too.
#define KVPOLICY_BENCHMARK(...) KVPOLICY_BENCHMARK_AT(__COUNTER__, (__VA_ARGS__))
#define KVPOLICY_BENCHMARK_WITH(...) KVPOLICY_BENCHMARK_AT(__COUNTER__, __VA_ARGS__)
#define KVPOLICY_BENCHMARK_AT(number, ...) KVPOLICY_BENCHMARK_NAMED(number, __VA_ARGS__)
#define KVPOLICY_BENCHMARK_NAMED(number, ...) \
  [[maybe_unused]] static bool const kvpolicy_benchmark_##number = ::kvpolicy::bench::register_scorer(__VA_ARGS__)

namespace KVPOLICY_NAMESPACE::bench {
namespace detail {

/// The bytes that a scorer says it reads: rows of keys, values and queries, and a float of each entry for every other
/// signal.
template <class Signal>
[[nodiscard]] double bytes_of_signal(layer const& of) {
  if constexpr (requires { typename Signal::options; }) {
    return []<class First, class... Others>(needs<First, Others...>, layer const& rows) {
      return bytes_of_signal<First>(rows);
    }(typename Signal::options{}, of);
  } else if constexpr (std::is_base_of_v<row_view, Signal>) {
    return static_cast<double>(of.bytes_of_plane());
  } else if constexpr (std::is_base_of_v<query_view, Signal>) {
    return of.bytes_of_queries();
  } else {
    return 4.0 * layer::model.kv_heads * of.entries();
  }
}
template <class... Signals>
[[nodiscard]] double bytes_of_needs(needs<Signals...>, layer const& of) {
  return (0.0 + ... + bytes_of_signal<Signals>(of));
}

/// A decision about a layer that can run any number of times.
template <executor Executor, class Score, class Layer, class Given>
class decision {
 public:
  decision(Executor& exec, Score const& score, Layer& of, Given const& given)
      : exec_(exec),
        policy_{.score = score, .budget = per_lane{of.entries() / 4}},
        cache_(of.view()),
        signals_(given),
        state_(make_state(exec, policy_, cache_)),
        plan_(make_plan(exec, policy_, cache_)) {
    of.clear();
    append(exec, cache_, state_, {.tokens = of.entries(), .position = 0});
    observe(exec, policy_, signals_, state_);
  }
  void operator()() const { decide(exec_, policy_, signals_, state_, plan_); }

 private:
  Executor& exec_;
  eviction<Score> policy_;
  kvpolicy::cache cache_;
  Given signals_;
  state<Executor> mutable state_;
  plan<Executor> mutable plan_;
};

/// Reads every byte once.
inline void read_all(host_executor& exec, std::byte const* from, std::size_t bytes) {
  constexpr int pieces = 64;
  exec.for_each(pieces, [&](int piece, int) {
    std::size_t const words = bytes / sizeof(std::uint64_t) / pieces;
    std::byte const* const begin = from + static_cast<std::size_t>(piece) * words * sizeof(std::uint64_t);
    std::uint64_t sums[8] = {};
    for (std::size_t i = 0; i + 8 <= words; i += 8) {
      std::uint64_t some[8];
      std::memcpy(some, begin + i * sizeof(std::uint64_t), sizeof some);
      for (int k = 0; k < 8; ++k) sums[k] += some[k];
    }
    benchmark::DoNotOptimize(sums);
  });
}

/// The signals of a row: keys, values and query rows, and what `make` gives.
template <class Make>
[[nodiscard]] auto given_of(kvpolicy::cache const& in, query_view const& rows, Make const& make) {
  return std::apply(
      [&](auto const&... more) {
        return signals{in.lanes, keys_of(in), values_of(in), kvpolicy::queries{rows}, more...};
      },
      make(in));
}

/// Reports a row: the seconds of the scorer's decision, of that of `knorm`, and of a read of the keys.
inline void report(benchmark::State& run, rounds const& taken, double bytes, double of_keys) {
  if (bytes == 0) return;  // nothing is read
  run.counters["of_read"] = taken.seconds(2) * bytes / of_keys / taken.seconds(0);
  run.counters["over_knorm"] = taken.seconds(0) / bytes / (taken.seconds(1) / of_keys);
  run.SetBytesProcessed(run.iterations() * static_cast<std::int64_t>(bytes));
}

/// One row of the report.
template <class Score, class Make>
void measure(benchmark::State& run, Score const& score, Make const& make, shape_of_row const& row) {
  layer of(row);
  kvpolicy::cache const cache = of.view();
  host_executor exec(row.threads);
  auto const given = given_of(cache, of.queries(), make);
  decision const mine(exec, score, of, given);
  decision const norms(exec, knorm{}, of, given);
  rounds const taken = in_turn(run, mine, norms, [&] { read_all(exec, of.keys().data(), of.bytes_of_plane()); });
  report(run, taken, bytes_of_needs(typename Score::needs{}, of), static_cast<double>(of.bytes_of_plane()));
}

/// Calls visit(shape of a row, its name) for each number of entries, element type and layout.
template <class Visit>
void for_each_row(std::string const& scorer, Visit const& visit) {
  for (int const entries : {4096, 32768}) {
    for (codec const element : {codec::f32, codec::f16, codec::bf16}) {
      for (layout const rows : {layout::nhd, layout::hnd, layout::slots, layout::pages}) {
        visit(shape_of_row{entries, element, rows, 1},
              scorer + "/entries:" + std::to_string(entries) + "/" + kvpolicy::name_of(element) + "/" + name_of(rows));
      }
    }
  }
}

/// Registers the rows of a scorer.
template <class Score, class Make>
void register_rows(Score const& score, Make const& make) {
  int const all = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for_each_row(to_string(score), [&](shape_of_row row, std::string const& name) {
    for (int threads = 1; threads <= all; threads = threads < all ? all : all + 1) {
      row.threads = threads;
      std::string const of = name + "/threads:" + std::to_string(threads);
      benchmark::RegisterBenchmark(of.c_str(), [=](benchmark::State& run) { measure(run, score, make, row); })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  });
}

/// A scorer that needs no signal but those that are given.
struct nothing_more {
  std::tuple<> operator()(kvpolicy::cache const&) const { return {}; }
};

/// Registers the rows of `knorm` and `snapkv`, once in a program.
inline bool register_peers() {
  register_rows(knorm{}, nothing_more{});
  register_rows(snapkv{}, nothing_more{});
  return true;
}
inline bool const has_peers = register_peers();

}  // namespace detail

/// Registers the rows of a scorer, as `KVPOLICY_BENCHMARK` and `KVPOLICY_BENCHMARK_WITH` do before `main`.
template <scorer Score, class Make = detail::nothing_more>
bool register_scorer(Score const& score, Make const& make = {}) {
  detail::register_rows(score, make);
  return true;
}

}  // namespace KVPOLICY_NAMESPACE::bench
