// SPDX-License-Identifier: Apache-2.0
// argmin over a whole model's lanes, one dropped entry each, against a read of the scores.
#include <kvpolicy/ops/argmin.hpp>

#include "measure.hpp"
#include "model.hpp"

namespace {

namespace kv = kvpolicy;

/// More than one set of scores, used in turn, so that they come from memory.
void argmin(benchmark::State& state, int entries, int threads) {
  constexpr int lanes = 288;
  constexpr int sets = 32;
  auto const floats = static_cast<std::size_t>(lanes) * static_cast<std::size_t>(entries);
  if (!bench::has_memory(state, 4.0 * static_cast<double>(floats) * sets)) return;
  bench::memory const scores(sets * floats * 4);
  bench::noise random(7);
  for (std::size_t i = 0; i < sets * floats; ++i) scores.as<float>()[i] = random.uniform();
  std::vector<int> count(lanes, entries), position(static_cast<std::size_t>(entries)), ordinal(floats), seen(lanes);
  for (int e = 0; e < entries; ++e) position[static_cast<std::size_t>(e)] = e;
  std::vector<std::int64_t> offset(lanes + 1);
  kv::report report;
  kv::lanes const batch{.layer_end = 36,
                        .heads = 8,
                        .capacity = entries,
                        .count = {count.data(), 0, 8, 1},
                        .position = {position.data(), 0, 0, 0}};
  kv::keep_set const keep{.lanes = batch,
                          .lists = kv::side::dropped,
                          .indptr = offset.data(),
                          .indices = ordinal.data(),
                          .entry_count = seen.data(),
                          .capacity = static_cast<std::int64_t>(floats),
                          .report = &report};
  kv::host_executor exec(threads);
  std::size_t at = 0;
  float const* now = scores.as<float>();
  auto const next = [&] { now = scores.as<float>() + floats * (at++ % sets); };
  auto const lowest = [&] {
    kv::score_view const view = kv::contiguous_scores(batch, kv::granularity::lane, const_cast<float*>(now), entries);
    kv::ops::argmin(exec, view, kv::plain_top_k{entries - 1}, keep);
  };
  next();
  lowest();
  for (int i = 0; i < lanes; ++i) {
    float const* const row = now + static_cast<std::size_t>(i) * static_cast<std::size_t>(entries);
    if (row[keep.listed(i)[0]] != *std::min_element(row, row + entries)) return state.SkipWithError("wrong result");
  }
  auto const plain = [&] {
    for (int i = 0; i < lanes; ++i) {
      float const* const row = now + static_cast<std::size_t>(i) * static_cast<std::size_t>(entries);
      benchmark::DoNotOptimize(std::min_element(row, row + entries));
    }
  };
  bench::rounds const taken = bench::in_turn_after(state, next, lowest, plain, [&] {
    bench::floors::read_pass(exec, reinterpret_cast<std::byte const*>(now), 4 * floats);
  });
  bench::report_share(state, taken, 0, 2);
  state.counters["over_min_element"] = 1 / taken.ratio(0, 1);
  bench::report_rate(state, 4.0 * static_cast<double>(floats), taken.seconds(0), threads);
}

void argmin_of_lanes(benchmark::State& state) {
  argmin(state, static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
}
BENCHMARK(argmin_of_lanes)
    ->Name("argmin")
    ->ArgNames({"entries", "threads"})
    ->Args({4096, 1})
    ->Args({4096, 2})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->Iterations(200);

}  // namespace
