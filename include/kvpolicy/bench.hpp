// SPDX-License-Identifier: Apache-2.0
// Benchmarks of a scorer, by Google Benchmark: how long a decision takes, and how far that is from reading the rows.
//
// This header is not part of the umbrella, because it needs <benchmark/benchmark.h>; link benchmark::benchmark.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <kvpolicy/kvpolicy.hpp>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

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
#define KVPOLICY_BENCHMARK(...) KVPOLICY_BENCHMARK_AT(__COUNTER__, (__VA_ARGS__))
#define KVPOLICY_BENCHMARK_WITH(...) KVPOLICY_BENCHMARK_AT(__COUNTER__, __VA_ARGS__)
#define KVPOLICY_BENCHMARK_AT(number, ...) KVPOLICY_BENCHMARK_NAMED(number, __VA_ARGS__)
#define KVPOLICY_BENCHMARK_NAMED(number, ...) \
  [[maybe_unused]] static bool const kvpolicy_benchmark_##number = ::kvpolicy::bench::register_scorer(__VA_ARGS__)

namespace KVPOLICY_NAMESPACE::bench {
namespace detail {

/// How the rows of a lane lie in memory: all heads of a token in turn, all tokens of a head in turn, rows of any order
/// that a slot map finds, or pages of 16 tokens in any order.
enum class layout { nhd, hnd, slots, pages };

[[nodiscard]] constexpr char const* name_of(layout of) {
  constexpr char const* names[] = {"nhd", "hnd", "slots", "pages"};
  return names[static_cast<int>(of)];
}

/// What a row of the report is about.
struct shape_of_row {
  int entries = 4096;
  codec element = codec::f32;
  layout rows = layout::nhd;
  int threads = 1;
};

/// One layer of random rows, and the queries of its last tokens.
class layer {
 public:
  static constexpr shape model{.layers = 1, .query_heads = 32, .kv_heads = 8, .head_dim = 128};
  static constexpr int window = 32, page = 16;

  explicit layer(shape_of_row const& of)
      : of_(of),
        k_(bytes_of_plane(), std::byte{}),
        v_(k_),
        table_(places(), 0),
        counts_(model.kv_heads, 0),
        positions_(static_cast<std::size_t>(model.kv_heads) * static_cast<std::size_t>(of.entries), 0) {
    fill(k_), fill(v_);
    for (std::size_t i = 0; i < table_.size(); ++i) table_[i] = static_cast<int>(i);
    for (std::size_t i = table_.size(); i-- > 1;) std::swap(table_[i], table_[next() % (i + 1)]);
    for (int i = 0; i < model.query_heads * window * model.head_dim; ++i) queries_.push_back(4 * random());
    for (int i = 0; i < window; ++i) query_positions_.push_back(of.entries - window + i);
  }
  layer(layer const&) = delete;  // views point into this object
  layer& operator=(layer const&) = delete;

  /// Forgets the entries; their rows stay.
  void clear() { std::fill(counts_.begin(), counts_.end(), 0); }
  /// The cache; it is empty until its entries are appended.
  [[nodiscard]] kvpolicy::cache view() {
    contiguous_memory const memory{.k = k_.data(),
                                   .v = v_.data(),
                                   .element = of_.element,
                                   .shape = model,
                                   .capacity = of_.entries,
                                   .counts = counts_.data(),
                                   .positions = positions_.data(),
                                   .order = of_.rows == layout::hnd ? axis_order::hnd : axis_order::nhd};
    kvpolicy::cache made = contiguous_cache(memory);
    if (of_.rows == layout::slots) {
      for (plane* rows : {&made.k, &made.v}) rows->unit_stride = std::exchange(rows->token_stride, 0);
      made.where = slot_map({table_.data()}, of_.entries);
    } else if (of_.rows == layout::pages) {
      for (plane* rows : {&made.k, &made.v}) rows->unit_stride = rows->token_stride * page;
      made.where = block_table({table_.data()}, page, of_.entries / page);
    }
    return made;
  }
  [[nodiscard]] query_view queries() const {
    return queries_of(queries_.data(), model, window, query_positions_.data(), {.order = axis_order::hnd});
  }
  [[nodiscard]] std::vector<std::byte> const& keys() const { return k_; }
  [[nodiscard]] std::size_t bytes_of_plane() const {
    return static_cast<std::size_t>(of_.entries) *
           static_cast<std::size_t>(model.kv_heads * model.head_dim * kvpolicy::bytes_of(of_.element));
  }
  [[nodiscard]] int entries() const { return of_.entries; }
  [[nodiscard]] double bytes_of_queries() const { return 4.0 * static_cast<double>(queries_.size()); }

 private:
  /// Units that a table names: a row each, or a page.
  [[nodiscard]] std::size_t places() const {
    return static_cast<std::size_t>(of_.rows == layout::pages ? of_.entries / page : of_.entries);
  }
  [[nodiscard]] std::size_t next() {
    seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(seed_ >> 33);
  }
  [[nodiscard]] float random() { return static_cast<float>(next() % (1u << 20)) / static_cast<float>(1 << 19) - 1.0f; }
  /// Random numbers in [-1, 1): a few megabytes of them, repeated.
  void fill(std::vector<std::byte>& to) {
    auto const width = static_cast<std::size_t>(kvpolicy::bytes_of(of_.element));
    std::size_t const drawn = std::min(to.size(), ((std::size_t{1} << 20) + 1096) * width);
    for (std::size_t at = 0; at < drawn; at += width) store(of_.element, random(), to.data() + at);
    for (std::size_t at = drawn; at < to.size(); at += drawn)
      std::memcpy(to.data() + at, to.data(), std::min(drawn, to.size() - at));
  }

  shape_of_row of_;
  std::uint64_t seed_ = 1;
  std::vector<std::byte> k_, v_;
  std::vector<int> table_, counts_, positions_;
  std::vector<float> queries_;
  std::vector<int> query_positions_;
};

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
template <class Score, class Given>
class decision {
 public:
  decision(host_executor& exec, Score const& score, layer& of, Given const& given)
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
  void operator()() { decide(exec_, policy_, signals_, state_, plan_); }

 private:
  host_executor& exec_;
  eviction<Score> policy_;
  kvpolicy::cache cache_;
  Given signals_;
  state<host_executor> state_;
  plan<host_executor> plan_;
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

/// The median seconds of some works, which run in turn in every iteration after they have run once.
template <class... Work>
[[nodiscard]] std::vector<double> medians_in_turn(benchmark::State& run, Work&&... work) {
  std::vector<std::vector<double>> taken(sizeof...(work));
  (work(), ...);
  for (auto _ : run) {
    std::size_t which = 0;
    auto const timed = [&](auto& each) {
      auto const begin = std::chrono::steady_clock::now();
      each();
      benchmark::ClobberMemory();
      taken[which++].push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    };
    (timed(work), ...);
    run.SetIterationTime(taken.front().back());
  }
  std::vector<double> made;
  for (std::vector<double>& each : taken) {
    auto const middle = each.begin() + static_cast<std::ptrdiff_t>(each.size() / 2);
    std::nth_element(each.begin(), middle, each.end());
    made.push_back(*middle);
  }
  return made;
}

/// One row of the report.
template <class Score, class Make>
void measure(benchmark::State& run, Score const& score, Make const& make, shape_of_row const& row) {
  layer of(row);
  kvpolicy::cache cache = of.view();
  host_executor exec(row.threads);
  auto const given = std::apply(
      [&](auto const&... more) {
        return signals{cache.lanes, keys_of(cache), values_of(cache), queries{of.queries()}, more...};
      },
      make(cache));
  decision mine(exec, score, of, given);
  decision norms(exec, knorm{}, of, given);
  auto const taken = medians_in_turn(run, mine, norms, [&] { read_all(exec, of.keys().data(), of.bytes_of_plane()); });
  double const bytes = bytes_of_needs(typename Score::needs{}, of);
  auto const of_keys = static_cast<double>(of.bytes_of_plane());
  if (bytes == 0) return;  // nothing is read
  run.counters["of_read"] = taken[2] * bytes / of_keys / taken[0];
  run.counters["over_knorm"] = taken[0] / bytes / (taken[1] / of_keys);
  run.SetBytesProcessed(run.iterations() * static_cast<std::int64_t>(bytes));
}

/// Registers the rows of a scorer.
template <class Score, class Make>
void register_rows(Score const& score, Make const& make) {
  int const all = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (int const entries : {4096, 32768}) {
    for (codec const element : {codec::f32, codec::f16, codec::bf16}) {
      for (layout const rows : {layout::nhd, layout::hnd, layout::slots, layout::pages}) {
        for (int threads = 1; threads <= all; threads = threads < all ? all : all + 1) {
          shape_of_row const row{entries, element, rows, threads};
          std::string const name = to_string(score) + "/entries:" + std::to_string(entries) + "/" +
                                   kvpolicy::name_of(element) + "/" + name_of(rows) +
                                   "/threads:" + std::to_string(threads);
          benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& run) { measure(run, score, make, row); })
              ->UseManualTime()
              ->Unit(benchmark::kMicrosecond);
        }
      }
    }
  }
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
