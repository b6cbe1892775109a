// SPDX-License-Identifier: Apache-2.0
// add_probabilities over a whole model, as in a decode step (one row) and in a chunk of a prefill, against the loop
// that an engine's author would write, and against a read of the probabilities.
#include <kvpolicy/ops/add_probabilities.hpp>
#include <numeric>

#include "measure.hpp"
#include "model.hpp"

namespace {

namespace kv = kvpolicy;

constexpr kv::shape model{.layers = 36, .query_heads = 32, .kv_heads = 8, .head_dim = 128};
constexpr int lanes = 36 * 8;

/// The probabilities of a forward, `sets` of them used in turn, so that they come from memory.
struct summed {
  summed(int of_entries, int of_rows, kv::codec of)
      : entries(of_entries),
        rows(of_rows),
        element(of),
        set_bytes(static_cast<std::size_t>(36 * 32 * rows) * static_cast<std::size_t>(entries) *
                  static_cast<std::size_t>(kv::bytes_of(of))),
        sets(bench::memory_bound_bytes() / set_bytes + 1),
        data(sets * set_bytes),
        mass(static_cast<std::size_t>(lanes) * static_cast<std::size_t>(entries)),
        count(lanes, entries),
        position(static_cast<std::size_t>(rows)),
        ordinal(static_cast<std::size_t>(entries)) {
    std::iota(ordinal.begin(), ordinal.end(), 0);
    bench::fill_elements(data, element, 1, 3);
  }
  [[nodiscard]] kv::lanes batch() {
    return {.layer_end = 36,
            .heads = 8,
            .capacity = entries,
            .count = {count.data(), 0, 8, 1},
            .position = {ordinal.data()}};
  }
  [[nodiscard]] kv::attention_probabilities now() {
    return kv::probabilities_of(data.as<std::byte>() + at % sets * set_bytes, element, model, rows, entries,
                                position.data());
  }
  [[nodiscard]] kv::by_lane<float> masses() { return {mass.data(), 0, 8LL * entries, entries}; }

  int entries, rows;
  kv::codec element;
  std::size_t set_bytes, sets;
  bench::memory data;
  std::vector<float> mass;
  std::vector<int> count, position, ordinal;
  std::size_t at = 0;
};

/// The loop that one would write: row by row, for the layers [begin, end).
void plain_sum(summed& on, int begin, int end) {
  kv::attention_probabilities const from = on.now();
  for (int layer = begin; layer < end; ++layer) {
    for (int head = 0; head < 32; ++head) {
      float* const to = on.masses().row({0, layer, head / 4});
      for (int r = 0; r < on.rows; ++r) {
        std::byte const* const row = from.at({0, layer, 0}, head, r);
        if (on.element == kv::codec::f32) {
          auto const* const floats = reinterpret_cast<float const*>(row);
          for (int e = 0; e < on.entries; ++e) to[e] += floats[e];
        } else {
          for (int e = 0; e < on.entries; ++e) to[e] += kv::load(on.element, row + 2LL * e);
        }
      }
    }
  }
}

void add_probabilities(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0));
  int const rows = static_cast<int>(state.range(1));
  auto const element = static_cast<kv::codec>(state.range(2));
  int const threads = static_cast<int>(state.range(3));
  double const bytes = 36.0 * 32 * rows * entries * kv::bytes_of(element);
  if (!bench::has_memory(state, bytes + static_cast<double>(bench::memory_bound_bytes()))) return;
  summed on(entries, rows, element);
  kv::host_executor exec(threads);
  auto const sum = [&] { kv::ops::add_probabilities(exec, on.batch(), on.now(), kv::reduction::sum, on.masses()); };
  auto const plain = [&] {
    exec.for_each(threads, [&](int i, int) { plain_sum(on, 36 * i / threads, 36 * (i + 1) / threads); });
  };
  auto const read = [&] {
    auto* const first = const_cast<std::byte*>(on.now().base);  // the pass only reads
    bench::floors::read_pass(exec, first, on.set_bytes);
  };
  plain();
  std::vector<float> const expected = on.mass;
  std::fill(on.mass.begin(), on.mass.end(), 0.0f);
  sum();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!(std::abs(on.mass[i] - expected[i]) <= 1e-5f * static_cast<float>(4 * rows))) {
      return state.SkipWithError("wrong result");
    }
  }
  auto const touch = [&] {
    using bench::floors::touching;
    bench::floors::touch_pass(
        exec, {{touching::read, on.now().base, on.set_bytes}, {touching::both, on.mass.data(), 4 * on.mass.size()}});
  };
  bench::rounds const taken = bench::in_turn_after(state, [&] { ++on.at; }, sum, plain, read, touch);
  bench::report_share(state, taken, 0, 3);
  state.SetLabel(kv::name_of(element));
  state.counters["over_loop"] = taken.ratio(0, 1);
  state.counters["over_read"] = taken.ratio(0, 2);
  bench::report_rate(state, bytes, taken.seconds(0), threads);
}
BENCHMARK(add_probabilities)
    ->ArgNames({"entries", "rows", "element", "threads"})
    ->ArgsProduct({{4096, 32768}, {1}, {0, 1, 2}, {1, 2}})
    ->ArgsProduct({{1024}, {256}, {0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(20);

}  // namespace
