// SPDX-License-Identifier: Apache-2.0
// append_column over a whole model's lanes: the gates of a prefill enter their column, or those of one new token.
// Against std::memcpy where both lie alike, and the loop that one would write elsewhere.
#include <kvpolicy/ops/append_column.hpp>

#include "measure.hpp"
#include "model.hpp"

namespace {

namespace kv = kvpolicy;

constexpr int lanes = 36 * 8, heads = 8, layers = 36;

/// Columns of `bound` entries, all there, and numbers for the last `new_tokens` of them: [layer][token][head] as a
/// projection makes them, or [layer][head][token] as the column has them.
struct carried {
  carried(int entries, int num_new_tokens, kv::codec element, bool token_first)
      : bound(entries),
        by_token(token_first),
        from(static_cast<std::size_t>(kv::bytes_of(element)) * lanes * static_cast<std::size_t>(num_new_tokens)),
        column(static_cast<std::size_t>(lanes) * static_cast<std::size_t>(entries)),
        count(lanes, entries) {
    bench::fill_elements(from, element, 1, 3);
    std::int64_t const width = kv::bytes_of(element);
    numbers = {
        .base = from.data(), .element = element, .layer = width * heads * num_new_tokens, .entries = num_new_tokens};
    numbers.head = by_token ? width : width * num_new_tokens;
    numbers.entry = by_token ? width * heads : width;
  }
  [[nodiscard]] kv::lanes who() {
    return {.layer_end = layers, .heads = heads, .capacity = bound, .count = {count.data(), 0, heads, 1}};
  }
  [[nodiscard]] kv::by_lane<float> table() { return {column.data(), 0, std::int64_t{heads} * bound, bound}; }
  [[nodiscard]] float* to(int lane) { return column.data() + std::int64_t{lane + 1} * bound - numbers.entries; }

  int bound;
  bool by_token;
  bench::memory from;
  std::vector<float> column;
  std::vector<int> count;
  kv::entry_numbers numbers;
};

/// What one would write for one lane.
template <class Get>
void plain_carry(carried& on, int lane, Get const& get) {
  auto const fresh = static_cast<std::size_t>(on.numbers.entries);
  auto const layer = static_cast<std::size_t>(lane / heads), head = static_cast<std::size_t>(lane % heads);
  float* const to = on.to(lane);
  std::size_t const first = layer * heads * fresh + (on.by_token ? head : head * fresh);
  std::size_t const step = on.by_token ? heads : 1;
  for (std::size_t e = 0; e < fresh; ++e) to[e] = get(first + e * step);
}
void plain_carry(carried& on, int lane) {
  auto const fresh = static_cast<std::size_t>(on.numbers.entries);
  if (on.numbers.element != kv::codec::f32) {
    plain_carry(on, lane, [&](std::size_t i) { return kv::from_bf16(on.from.as<std::uint16_t>()[i]); });
  } else if (on.by_token) {
    plain_carry(on, lane, [&](std::size_t i) { return on.from.as<float>()[i]; });
  } else {
    std::memcpy(on.to(lane), on.from.as<float>() + static_cast<std::size_t>(lane) * fresh, 4 * fresh);
  }
}

void append_column(benchmark::State& state) {
  int const num_new_tokens = static_cast<int>(state.range(0)), threads = static_cast<int>(state.range(3));
  int const bound = std::max(num_new_tokens, 4096);
  if (!bench::has_memory(state, 12.0 * lanes * bound)) return;
  carried on(bound, num_new_tokens, static_cast<kv::codec>(state.range(1)), state.range(2) != 0);
  kv::host_executor exec(threads);
  auto const carry = [&] { kv::ops::append_column(exec, on.who(), on.numbers, on.table()); };
  auto const plain = [&] { exec.for_each(lanes, [&](int i, int) { plain_carry(on, i); }); };
  plain();
  std::vector<float> const expected = on.column;
  std::fill(on.column.begin(), on.column.end(), 0.0f);
  carry();
  if (on.column != expected) return state.SkipWithError("wrong result");
  auto const touch = [&] {
    std::size_t const there =
        on.column.size() * static_cast<std::size_t>(num_new_tokens) / static_cast<std::size_t>(bound);
    bench::floors::touch_pass(exec, {{bench::floors::touching::read, on.from.data(), on.from.size()},
                                     {bench::floors::touching::write, on.column.data(), 4 * there}});
  };
  bench::rounds const taken = bench::in_turn(state, carry, plain, touch);
  bench::report_share(state, taken, 0, 2);
  state.counters["over_loop"] = taken.ratio(0, 1);
  bench::report_rate(state, 4.0 * lanes * num_new_tokens, taken.seconds(0), threads);
}
constexpr auto f32 = static_cast<int>(kv::codec::f32), bf16 = static_cast<int>(kv::codec::bf16);
BENCHMARK(append_column)
    ->ArgNames({"fresh", "element", "by_token", "threads"})
    ->ArgsProduct({{4096, 32768}, {f32, bf16}, {0, 1}, {1, 2}})
    ->ArgsProduct({{1}, {bf16}, {1}, {1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->Iterations(50);

}  // namespace
