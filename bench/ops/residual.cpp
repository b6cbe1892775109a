// SPDX-License-Identifier: Apache-2.0
// The verbs of IntentKV's memory and residual, over a whole model, each against the slower of a plain loop that touches
// once what the verb must and its multiply-adds at the instruction's peak.
#include <kvpolicy/ops/residual.hpp>
#include <kvpolicy/ops/update_query_memory.hpp>

#include "drawn_head.hpp"
#include "measure.hpp"
#include "model.hpp"

namespace {

namespace kv = kvpolicy;
using bench::floors::touching;

constexpr int entries = 16384, span = 32, dims = 128;

/// Keys of a whole model, its last rows, and the features of its tokens.
struct turned {
  turned(int threads, int count, kv::codec element)
      : exec(threads),
        model(bench::whole_model, count, element),
        rows(bench::whole_model, count, span, element),
        memory(static_cast<std::size_t>(36 * 32 * dims), 0.25f),
        features(static_cast<std::size_t>(count + 1) * dims),
        scores(static_cast<std::size_t>(count)),
        cache(model.view()) {
    cache.lanes.count = {&num_entries};
    cache.lanes.position = {positions(count)};
    num_entries = count;
    static_cast<kv::query_view&>(turn) = rows.view();
    exec.reserve(kv::implementation<kv::ops::feature_sums_t, kv::host>::scratch(bench::whole_model, count));
    exec.reserve(kv::implementation<kv::ops::update_query_memory_t, kv::host>::scratch(bench::whole_model, count));
  }
  int* positions(int count) {
    for (int e = 0; e < count; ++e) position.push_back(e);
    return position.data();
  }
  [[nodiscard]] kv::query_view memory_rows() const {
    return {.base = reinterpret_cast<std::byte const*>(memory.data()),
            .element = kv::codec::f32,
            .dims = dims,
            .layer = 4LL * 32 * dims,
            .head = 4LL * dims,
            .row = 4LL * dims,
            .heads = 32,
            .rows = 1};
  }
  [[nodiscard]] kv::score_view out() {
    return kv::contiguous_scores(cache.lanes, kv::granularity::sequence, scores.data(), cache.lanes.capacity);
  }
  [[nodiscard]] kv::token_features tokens() { return {features.data(), dims, cache.lanes.capacity}; }

  kv::host_executor exec;
  bench::model_cache model;
  bench::model_queries rows;
  std::vector<float> memory, features, scores;
  std::vector<int> position;
  int num_entries = 0;
  kv::cache cache;
  kv::turn_queries turn;
};

/// Sums of every token's keys over layers and heads.
void feature_sums(benchmark::State& state) {
  auto const element = static_cast<kv::codec>(state.range(0));
  if (!bench::has_memory(state, bench::model_cache::bytes(bench::whole_model, entries, element))) return;
  turned on(static_cast<int>(state.range(1)), entries, element);
  auto const taken = bench::in_turn(
      state,
      [&] {
        kv::ops::feature_sums(on.exec, kv::keys_of(on.cache), on.memory_rows(), kv::key_sums{}, on.out(), on.tokens());
      },
      [&] {
        bench::floors::touch_pass(on.exec, {{touching::read, on.model.keys().data(), on.model.keys().size()},
                                            {touching::write, on.features.data(), 4 * on.features.size()}});
      });
  kv::ops::feature_sums(on.exec, kv::keys_of(on.cache), on.memory_rows(), kv::key_sums{}, on.out(), on.tokens());
  double expected = 0;
  for (int i = 0; i < 288; ++i) {
    kv::lane const one{0, i / 8, i % 8};
    expected += static_cast<double>(kv::load(element, on.cache.k.row(one.layer, {0, 5}, one.head)));
  }
  if (!(std::abs(static_cast<double>(on.tokens().row(0, 6)[0]) - expected) < 1e-3))
    return state.SkipWithError("wrong result");
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(feature_sums)
    ->ArgNames({"element", "threads"})
    ->ArgsProduct({{0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Iterations(9)
    ->Unit(benchmark::kMillisecond);

/// The sums of new tokens' keys are recorded.
void record_key_sums(benchmark::State& state) {
  auto const element = static_cast<kv::codec>(state.range(0));
  if (!bench::has_memory(state, bench::model_cache::bytes(bench::whole_model, entries, element))) return;
  turned on(static_cast<int>(state.range(1)), entries, element);
  on.exec.reserve(kv::implementation<kv::ops::record_key_sums_t, kv::host>::scratch(bench::whole_model, entries));
  std::vector<float> sums(std::size_t{36} * 8 * entries);
  kv::key_sums const to{{sums.data(), 36 * 8 * entries, 8 * entries, entries}, 1, 36};
  auto const taken = bench::in_turn_after(
      state, [&] { std::fill(sums.begin(), sums.end(), 0.0f); },
      [&] { kv::ops::record_key_sums(on.exec, kv::keys_of(on.cache), on.cache.lanes, to); },
      [&] {
        bench::floors::touch_pass(on.exec, {{touching::read, on.model.keys().data(), on.model.keys().size()},
                                            {touching::write, sums.data(), 4 * std::size_t{dims} * entries}});
      });
  double expected = 0;
  for (int i = 0; i < 288; ++i)
    expected += static_cast<double>(kv::load(element, on.cache.k.row(i / 8, {0, 5}, i % 8)));
  std::fill(sums.begin(), sums.end(), 0.0f);
  kv::ops::record_key_sums(on.exec, kv::keys_of(on.cache), on.cache.lanes, to);
  if (!(std::abs(static_cast<double>(sums[5]) - expected) < 1e-3)) return state.SkipWithError("wrong result");
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(record_key_sums)
    ->ArgNames({"element", "threads"})
    ->ArgsProduct({{0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Iterations(9)
    ->Unit(benchmark::kMillisecond);

/// The head over 16k tokens, with a span of 32.
void residual(benchmark::State& state) {
  turned on(static_cast<int>(state.range(0)), entries, kv::codec::bf16);
  bench::drawn_head const head(dims);
  kv::host_executor::buffer<float> scratch(
      on.exec, static_cast<std::size_t>(kv::ops::residual_t::scratch_floats(head.view(), entries)));
  bench::noise from(3);
  for (float& each : on.features) each = from.uniform();
  std::vector<float> const before = on.features;
  auto const peak = bench::floors::peak_of(on.exec.simd_level(), kv::codec::f32);
  double const width = head.view().width, hidden = head.view().hidden;
  double const of_an_entry = 2 * (dims * (width + hidden) + width * hidden + 2 * span * width);
  auto const taken = bench::in_turn_after(
      state,
      [&] {
        on.features = before;
        std::fill(on.scores.begin(), on.scores.end(), 0.5f);
      },
      [&] {
        kv::ops::residual(on.exec, on.tokens(), on.turn, head.view(), kv::residual_options{span, true}, on.out(),
                          scratch.data());
      },
      [&] { bench::floors::peak_pass(on.exec, peak, of_an_entry * entries); });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(residual)->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime()->Iterations(9)->Unit(benchmark::kMillisecond);

/// The mean of a turn's last 32 rows enters the memory of every layer and query head.
void update_query_memory(benchmark::State& state) {
  auto const element = static_cast<kv::codec>(state.range(0));
  turned on(static_cast<int>(state.range(1)), 64, element);
  std::size_t const bytes = static_cast<std::size_t>(36 * 32 * span * dims * kv::bytes_of(element));
  auto const taken = bench::in_turn(
      state,
      [&] {
        kv::ops::update_query_memory(on.exec, on.cache.lanes, on.turn, kv::query_memory_update{0.6f, false, span},
                                     kv::by_lane<float>{on.memory.data(), 0, 32 * dims, 4 * dims});
      },
      [&] {
        bench::floors::touch_pass(
            on.exec, {{touching::read, on.turn.base, bytes}, {touching::both, on.memory.data(), 4 * on.memory.size()}});
      });
  double square = 0;
  for (int d = 0; d < dims; ++d) {
    auto const value = static_cast<double>(on.memory[static_cast<std::size_t>(d)]);
    square += value * value;
  }
  if (!(std::abs(square - 1) < 1e-4)) return state.SkipWithError("wrong result");
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(update_query_memory)
    ->ArgNames({"element", "threads"})
    ->ArgsProduct({{0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Iterations(15)
    ->Unit(benchmark::kMicrosecond);

void refuse_spans(benchmark::State& state) {
  turned on(static_cast<int>(state.range(0)), 64, kv::codec::f32);
  int const begin = 2, end = 9;
  on.turn.span_begin = &begin;
  on.turn.span_end = &end;
  auto const taken = bench::in_turn(
      state, [&] { kv::ops::refuse_spans(on.exec, on.cache.lanes, on.turn, "observe"); },
      [&] { bench::floors::touch_pass(on.exec, {{touching::read, on.position.data(), 4 * on.position.size()}}); });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(refuse_spans)->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime()->Iterations(15);

}  // namespace
