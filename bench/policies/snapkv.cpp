// SPDX-License-Identifier: Apache-2.0
// SnapKV on a whole model's lanes; and on one layer, for the comparison with eager PyTorch (tools/bench_peers.py), with
// what a decision takes as scratch.
#include "policies/decide_apply.hpp"

namespace {

namespace kv = kvpolicy;

constexpr int window = 32;

/// As kvpress has it: the mean of the window's rows, an average pool of five, the mean of the group.
auto like_kvpress(int budget) {
  return kv::eviction{.score = kv::snapkv{.window = window, .pool = kv::avg_pool{5}, .rows = kv::reduction::mean},
                      .budget = kv::per_lane{budget}};
}

bench::judged expected(kv::cache const& cache, kv::query_view const& queries, kv::lane this_lane) {
  bench::reference::snapkv_options const with{.window = window,
                                              .budget = 1,
                                              .pool = {bench::reference::pool_kind::average, 5},
                                              .mass = {.rows = bench::reference::reduction::mean}};
  return {bench::reference::snapkv(bench::lane_of(cache, queries, this_lane), with).scores,
          bench::reference::ends(cache.lanes.committed(this_lane), 0, window)};
}

void snapkv(benchmark::State& state) {
  bench::whole_model_run(state, like_kvpress, {.rows = window, .reads_keys = true}, expected);
}
BENCHMARK(snapkv)->Apply(bench::whole_model_axes);

// For the report: one layer of 8 lanes x 32k.
// ---------------------------------------------------------------------------

constexpr int report_entries = 32768;

void report_snapkv(benchmark::State& state) {
  auto const element = static_cast<kv::codec>(state.range(0));
  int const threads = static_cast<int>(state.range(1));
  bench::run_of run(bench::one_layer, report_entries, element, like_kvpress(report_entries / 4),
                    {.rows = window, .reads_keys = true}, threads);
  if (!run.is_right(report_entries / 4, expected)) return state.SkipWithError("wrong result");
  auto const peak = bench::floors::peak_of(run.exec().simd_level(), element);
  double const products = double{window} * bench::one_layer.query_heads * report_entries * bench::one_layer.head_dim;
  auto const taken =
      bench::decide_and_apply(state, run, [&] { bench::floors::peak_pass(run.exec(), peak, 2 * products); });
  state.SetLabel(kv::name_of(element));
  state.counters["decide_apply_ms"] = 1e3 * taken.seconds(0);
  state.counters["decide_ms"] = 1e3 * taken.seconds(1);
  state.counters["share"] = taken.ratio(2, 1);
}
BENCHMARK(report_snapkv)
    ->Name("report/snapkv")
    ->ArgNames({"element", "threads"})
    ->ArgsProduct({{static_cast<int>(kv::codec::f32), static_cast<int>(kv::codec::bf16)}, {1, 2}})
    ->Iterations(5)
    ->UseManualTime();

/// Bytes of the first worker's scratch that decide and apply have written, at most: all that lies before the last byte
/// that is no longer as it was, whichever of two patterns that was.
template <class Run>
std::size_t scratch_written(Run& run) {
  std::size_t last = 0;
  for (int const pattern : {0x5A, 0xA5}) {
    auto const memory = run.exec().scratch(0);
    std::memset(memory.data(), pattern, memory.size());
    run.reset();
    run.decide();
    run.apply();
    for (std::size_t i = memory.size(); i > last; --i) {
      if (memory[i - 1] != static_cast<std::byte>(pattern)) last = i;
    }
  }
  return last;
}

/// Scratch of a worker: what required_bytes says, what is reserved, what is written. From two sizes, floats an entry,
/// and what does not depend on the entries.
void report_scratch(benchmark::State& state) {
  auto const element = static_cast<kv::codec>(state.range(0));
  double stated[2], reserved[2], written[2];
  double const entries[2] = {8192, 32768};
  for (int i = 0; i < 2; ++i) {
    int const n = static_cast<int>(entries[i]);
    bench::run_of run(bench::one_layer, n, element, like_kvpress(n / 4), {.rows = window, .reads_keys = true}, 1);
    stated[i] = static_cast<double>(kv::required_bytes<kv::host_executor>(run.policy(), run.cache()).scratch);
    reserved[i] = static_cast<double>(run.exec().reserved());
    written[i] = static_cast<double>(scratch_written(run));
  }
  for (auto _ : state) state.SetIterationTime(1e-9);
  auto const floats_an_entry = [&](double const(&of)[2]) { return (of[1] - of[0]) / (entries[1] - entries[0]) / 4; };
  state.SetLabel(kv::name_of(element));
  state.counters["stated_bytes"] = stated[1];
  state.counters["reserved_bytes"] = reserved[1];
  state.counters["written_bytes"] = written[1];
  state.counters["floats_an_entry"] = floats_an_entry(reserved);
  state.counters["written_floats_an_entry"] = floats_an_entry(written);
  state.counters["constant_bytes"] = reserved[1] - 4 * floats_an_entry(reserved) * entries[1];
}
BENCHMARK(report_scratch)
    ->Name("report/scratch")
    ->ArgName("element")
    ->Arg(static_cast<int>(kv::codec::f32))
    ->Arg(static_cast<int>(kv::codec::bf16))
    ->Iterations(1)
    ->UseManualTime();

}  // namespace
