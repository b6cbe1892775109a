// SPDX-License-Identifier: Apache-2.0
// fill_row: one slot's keys and values in every layer and head of a model, against a memset of each row.
#include <kvpolicy/ops/fill_row.hpp>

#include "measure.hpp"
#include "model.hpp"

namespace {

namespace kv = kvpolicy;

constexpr int heads = 8, layers = 36, dims = 128;

/// [layer][slot][head][dim], as pools of slots mostly are.
kv::cache pool_of(bench::memory const& k, bench::memory const& v, kv::codec element, int slots) {
  std::int64_t const width = kv::bytes_of(element);
  std::int64_t const row = width * dims;
  kv::plane const rows{.base = k.data(),
                       .element = element,
                       .channels = dims,
                       .layer_stride = row * heads * slots,
                       .unit_stride = row * heads,
                       .head_stride = row,
                       .channel_stride = width};
  kv::cache made{.shape = bench::whole_model, .k = rows, .v = rows};
  made.v.base = v.data();
  made.where.units = slots;
  return made;
}

/// The row at a slot, in every layer and head of both planes.
template <class Visit>
void for_each_row(kv::cache const& in, std::int64_t slot, Visit const& visit) {
  for (kv::plane const& rows : {in.k, in.v}) {
    for (int layer = 0; layer < layers; ++layer) {
      for (int head = 0; head < heads; ++head) visit(rows.row(layer, {slot, 0}, head));
    }
  }
}

/// True if this slot has these numbers everywhere, and its neighbours are what they were.
bool fills(kv::host_executor& exec, kv::cache const& in, bench::memory const& k, std::int64_t slot) {
  std::vector<std::byte> const before(k.data(), k.data() + k.size());
  kv::ops::fill_row(exec, in, kv::place{slot, 0}, -2.0f, 3.0f);
  bool right = true;
  std::size_t changed = 0;
  int seen = 0;
  for_each_row(in, slot, [&](std::byte const* row) {
    float const expected = seen++ < layers * heads ? -2.0f : 3.0f;  // the keys first
    for (int d = 0; d < dims; ++d) right = right && kv::load(in.k.element, row + d * in.k.channel_stride) == expected;
  });
  for (std::size_t at = 0; at < k.size(); ++at) {
    if (k.data()[at] != before[at]) ++changed;
  }
  return right && changed <= static_cast<std::size_t>(layers * heads * dims * in.k.channel_stride);
}

void fill_row(benchmark::State& state) {
  auto const element = static_cast<kv::codec>(state.range(0));
  constexpr int slots = 2048;
  auto const row = static_cast<std::size_t>(kv::bytes_of(element)) * dims;
  if (!bench::has_memory(state, 3.0 * static_cast<double>(row) * layers * heads * slots)) return;
  bench::memory const k(row * layers * heads * slots), v(k.size());
  bench::fill_elements(k, element, 1, 1);
  bench::fill_elements(v, element, 1, 2);
  kv::cache const cache = pool_of(k, v, element, slots);
  kv::host_executor exec(static_cast<int>(state.range(1)));
  if (!fills(exec, cache, k, 1000)) return state.SkipWithError("wrong result");
  std::int64_t slot = 0;
  auto const elsewhere = [&] { slot = (slot + 977) % slots; };  // so that rows are not in a cache
  bench::rounds const taken = bench::in_turn_after(
      state, elsewhere, [&] { kv::ops::fill_row(exec, cache, kv::place{slot, 0}, 0.0f, 0.0f); },
      [&] { for_each_row(cache, slot, [&](std::byte* to) { std::memset(to, 0, row); }); });
  state.counters["over_memset"] = taken.ratio(0, 1);
  bench::report_share(state, taken, 0, 1);
  bench::report_rate(state, 2.0 * static_cast<double>(row) * layers * heads, taken.seconds(0), exec.threads());
}
BENCHMARK(fill_row)
    ->ArgNames({"element", "threads"})
    ->ArgsProduct({{0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->Iterations(1000);

}  // namespace
