// SPDX-License-Identifier: Apache-2.0
// Verbs over a whole model's scores and query rows: map, pool, ring_append and ring_truncate, each against a plain loop
// that reads and writes once what the verb must.
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/pool.hpp>
#include <kvpolicy/ops/ring_append.hpp>
#include <kvpolicy/ops/top_k.hpp>

#include "measure.hpp"
#include "model.hpp"

namespace {

namespace kv = kvpolicy;
using bench::floors::touching;

constexpr int lanes = 36 * 8, entries = 32768, dims = 128, group = 4;

/// A number for each entry of every lane, in memory.
struct scored {
  explicit scored(int threads)
      : exec(threads),
        values(static_cast<std::size_t>(lanes) * entries),
        count(lanes, entries),
        position(static_cast<std::size_t>(entries)) {
    bench::noise from(3);
    for (float& each : values) each = from.uniform();
    for (int e = 0; e < entries; ++e) position[static_cast<std::size_t>(e)] = e;
    who = {.layer_end = 36,
           .heads = 8,
           .capacity = entries,
           .count = {count.data(), 0, 8, 1},
           .position = {position.data()}};
    exec.reserve(kv::implementation<kv::ops::pool_t, kv::host>::scratch(bench::whole_model, entries));
  }
  [[nodiscard]] kv::score_view view() {
    return kv::contiguous_scores(who, kv::granularity::lane, values.data(), entries);
  }
  void touch() { bench::floors::touch_pass(exec, {{touching::both, values.data(), 4 * values.size()}}); }

  kv::host_executor exec;
  std::vector<float> values;
  std::vector<int> count, position;
  kv::lanes who;
};

/// A cheap function of a score and its entry: the verb's own cost is what is asked for.
struct halved_with_age {
  float operator()(float score, kv::entry const& at) const {
    return score * 0.5f + static_cast<float>(at.position) * 0x1p-20f;
  }
};

void map(benchmark::State& state) {
  scored on(static_cast<int>(state.range(0)));
  float const first = on.values[77];
  kv::ops::map(on.exec, on.view(), halved_with_age{});
  if (on.values[77] != first * 0.5f + 77 * 0x1p-20f) return state.SkipWithError("wrong result");
  auto const taken =
      bench::in_turn(state, [&] { kv::ops::map(on.exec, on.view(), halved_with_age{}); }, [&] { on.touch(); });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(map)
    ->Name("map/model")
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->UseManualTime()
    ->Iterations(15)
    ->Unit(benchmark::kMillisecond);

void pool(benchmark::State& state) {
  scored on(static_cast<int>(state.range(2)));
  int const width = static_cast<int>(state.range(0));
  kv::pooling const by = state.range(1) != 0 ? kv::pooling{kv::max_pool{width}} : kv::pooling{kv::avg_pool{width}};
  auto const taken = bench::in_turn(state, [&] { kv::ops::pool(on.exec, by, on.view(), 32); }, [&] { on.touch(); });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(pool)
    ->Name("pool/model")
    ->ArgNames({"width", "max", "threads"})
    ->ArgsProduct({{5, 7}, {0, 1}, {1, 2}})
    ->UseManualTime()
    ->Iterations(9)
    ->Unit(benchmark::kMillisecond);

/// A quarter of all entries stays, by a budget that the heads of a layer, or all lanes, share.
template <class Budget>
void top_k_pooled(benchmark::State& state, Budget const& budget) {
  scored on(static_cast<int>(state.range(0)));
  std::vector<int> ordinal(on.values.size()), seen(lanes);
  std::vector<std::int64_t> offset(lanes + 1);
  kv::report told;
  kv::keep_set const keep{.lanes = on.who,
                          .indptr = offset.data(),
                          .indices = ordinal.data(),
                          .entry_count = seen.data(),
                          .capacity = static_cast<std::int64_t>(ordinal.size()),
                          .report = &told};
  on.exec.reserve(kv::implementation<kv::ops::top_k_t, kv::host>::scratch(bench::whole_model, entries));
  kv::detail::decision_rule const rule{kv::nothing{}, kv::nothing{}, budget, kv::over_budget{}};
  auto const taken = bench::in_turn(
      state, [&] { kv::ops::top_k(on.exec, on.view(), rule, keep); },
      [&] {
        bench::floors::touch_pass(on.exec, {{touching::read, on.values.data(), 4 * on.values.size()},
                                            {touching::write, ordinal.data(), ordinal.size()}});  // a quarter
      });
  if (offset.back() != std::int64_t{lanes} * entries / 4) return state.SkipWithError("wrong result");
  bench::report_share(state, taken, 0, 1);
  state.counters["over_floor"] = 1 / state.counters["share"];
}
void top_k_per_layer(benchmark::State& state) { top_k_pooled(state, kv::per_layer{entries / 4}); }
void top_k_per_sequence(benchmark::State& state) { top_k_pooled(state, kv::per_sequence{entries / 4}); }
#define KVPOLICY_POOLED(name) \
  BENCHMARK(name)->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime()->Iterations(9)->Unit(benchmark::kMillisecond)
KVPOLICY_POOLED(top_k_per_layer);
KVPOLICY_POOLED(top_k_per_sequence);

/// Rings of 32 query rows of a whole model, and a forward's rows.
struct ringed {
  ringed(int threads, int of_rows, kv::codec of)
      : exec(threads),
        element(of),
        rows(of_rows),
        from(static_cast<std::size_t>(lanes * group * rows * dims * kv::bytes_of(of))),
        ring(static_cast<std::size_t>(lanes) * group * capacity * dims),
        positions(static_cast<std::size_t>(lanes) * capacity),
        cursors(static_cast<std::size_t>(lanes) * 2),
        count(lanes, entries),
        last(static_cast<std::size_t>(entries)),
        given(static_cast<std::size_t>(rows)) {
    bench::fill_elements(from, element, 1, 3);
    for (int e = 0; e < entries; ++e) last[static_cast<std::size_t>(e)] = e;
    for (int r = 0; r < rows; ++r) given[static_cast<std::size_t>(r)] = entries - rows + r;
    who = {
        .layer_end = 36, .heads = 8, .capacity = entries, .count = {count.data(), 0, 8, 1}, .position = {last.data()}};
  }
  [[nodiscard]] kv::query_view queries() const {
    std::int64_t const row = std::int64_t{dims} * kv::bytes_of(element);
    return {.base = from.data(),
            .element = element,
            .dims = dims,
            .layer = row * rows * 32,
            .head = row * rows,
            .row = row,
            .heads = 32,
            .rows = rows,
            .position = {given.data()}};
  }
  [[nodiscard]] kv::query_ring_view view() {
    std::int64_t const of_lane = std::int64_t{group} * capacity * dims;
    return {capacity,
            group,
            dims,
            {ring.data(), 0, 8 * of_lane, of_lane},
            {positions.data(), 0, 8 * capacity, capacity},
            {cursors.data(), 0, 16, 2}};
  }

  static constexpr int capacity = 32;
  kv::host_executor exec;
  kv::codec element;
  int rows;
  bench::memory from;
  std::vector<float> ring;
  std::vector<int> positions, cursors, count, last, given;
  kv::lanes who;
};

void ring_append(benchmark::State& state) {
  ringed on(static_cast<int>(state.range(2)), static_cast<int>(state.range(0)), static_cast<kv::codec>(state.range(1)));
  std::size_t const written = on.ring.size() / ringed::capacity * static_cast<std::size_t>(on.rows);
  auto const taken = bench::in_turn(
      state, [&] { kv::ops::ring_append(on.exec, on.who, on.queries(), on.view()); },
      [&] {
        bench::floors::touch_pass(on.exec, {{touching::read, on.from.data(), on.from.size()},
                                            {touching::write, on.ring.data(), 4 * written}});
      });
  kv::ops::ring_append(on.exec, on.who, on.queries(), on.view());
  int const* const cursor = on.cursors.data();
  int const newest = (cursor[0] + cursor[1] - 1) % ringed::capacity;
  if (on.positions[static_cast<std::size_t>(newest)] != entries - 1 ||
      on.ring[static_cast<std::size_t>(newest) * dims] != kv::load(on.element, on.queries().at({}, 0, on.rows - 1)))
    return state.SkipWithError("wrong result");
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(ring_append)
    ->Name("ring_append/model")
    ->ArgNames({"rows", "element", "threads"})
    ->ArgsProduct({{1, 32}, {0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Iterations(25)
    ->Unit(benchmark::kMicrosecond);

void ring_truncate(benchmark::State& state) {
  ringed on(static_cast<int>(state.range(0)), ringed::capacity, kv::codec::f32);
  auto const taken = bench::in_turn_after(
      state, [&] { kv::ops::ring_append(on.exec, on.who, on.queries(), on.view()); },
      [&] { kv::ops::ring_truncate(on.exec, on.who, on.view(), 0, entries - 3); },
      [&] {
        bench::floors::touch_pass(on.exec, {{touching::both, on.cursors.data(), 4 * on.cursors.size()},
                                            {touching::read, on.positions.data(), 4 * on.positions.size()}});
      });
  if (taken.least(0) <= 0) return state.SkipWithError("wrong result");
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(ring_truncate)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->UseManualTime()
    ->Iterations(25)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
