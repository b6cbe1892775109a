// SPDX-License-Identifier: Apache-2.0
// The verbs that write masks, over a whole model's lanes, each with a list of scattered slots: three of four entries
// are hidden, or those of the lists shown; against the loop that one would write.
#include <kvpolicy/ops/mask_rows.hpp>

#include "listed_model.hpp"
#include "measure.hpp"

namespace {

namespace kv = kvpolicy;

constexpr int lanes = bench::listed_model::lanes;

/// Bits of a mask's element.
int bits_of(kv::mask_form form) {
  if (form == kv::mask_form::additive_f32) return 32;
  return form == kv::mask_form::bits ? 1 : (form == kv::mask_form::boolean ? 8 : 16);
}

struct masked {
  masked(int entries, kv::mask_form form)
      : model(entries, entries / 4),
        row((static_cast<std::size_t>(entries) + 1) * static_cast<std::size_t>(bits_of(form)) / 8 / 64 * 64 + 64),
        memory(row * lanes) {
    auto const bytes = static_cast<std::int64_t>(row);
    mask = {{memory.data(), 0, 8 * bytes, bytes}, form, entries + 1};
    std::memset(memory.data(), 0, memory.size());
  }
  /// May an attention read this unit? Without the library's code.
  [[nodiscard]] bool readable(int lane, int unit) const {
    std::byte const* const at = memory.data() + row * static_cast<std::size_t>(lane);
    auto const u = static_cast<std::size_t>(unit);
    if (mask.form == kv::mask_form::boolean) return at[u] != std::byte{0};
    if (mask.form == kv::mask_form::bits) return (static_cast<unsigned>(at[u / 8]) >> (u % 8) & 1u) != 0;
    auto const bytes = static_cast<std::size_t>(bits_of(mask.form)) / 8;
    return std::all_of(at + u * bytes, at + (u + 1) * bytes, [](std::byte one) { return one == std::byte{0}; });
  }

  bench::listed_model model;
  std::size_t row;
  bench::memory memory;
  kv::mask_rows mask;
};

/// True if exactly the units of these entries may be read: `hidden` says which entries may not.
template <class Hidden>
bool is_mask(masked& on, bool dead_readable, Hidden const& hidden) {
  for (int i : {0, 100, lanes - 1}) {
    auto const kept = on.model.keep().listed(i);
    int const* const slot = on.model.row(on.model.list, i);
    for (int e = 0; e < on.model.bound; ++e) {
      bool const stays = std::binary_search(kept.begin(), kept.end(), e);
      if (on.readable(i, slot[e]) == hidden(stays)) return false;
    }
    if (on.readable(i, 0) != dead_readable) return false;
  }
  return true;
}

/// The same in f32 by plain loops: a mark an entry, then a pass.
void plain_hide(masked const& on, kv::keep_set const& keep, int i, std::vector<char>& stays) {
  std::fill(stays.begin(), stays.end(), char{0});
  for (int const e : keep.listed(i)) stays[static_cast<std::size_t>(e)] = 1;
  auto* const row = reinterpret_cast<float*>(on.memory.data() + on.row * static_cast<std::size_t>(i));
  int const* const slot = on.model.list.data() + std::int64_t{i} * on.model.bound;
  for (int e = 0; e < on.model.bound; ++e) {
    if (stays[static_cast<std::size_t>(e)] == 0) row[slot[e]] = -std::numeric_limits<float>::infinity();
  }
}
void plain_show(masked const& on, int i) {
  auto* const row = reinterpret_cast<float*>(on.memory.data() + on.row * static_cast<std::size_t>(i));
  std::fill_n(row, on.model.bound + 1, -std::numeric_limits<float>::infinity());
  int const* const slot = on.model.list.data() + std::int64_t{i} * on.model.bound;
  for (int e = 0; e < on.model.bound; ++e) row[slot[e]] = 0;
}

/// A floor's loop: an element of the mask is written for each of a lane's first entries, at their slots.
void touch_elements(masked const& on, int i, int entries) {
  std::byte* const row = on.memory.data() + on.row * static_cast<std::size_t>(i);
  int const* const slot = on.model.list.data() + std::int64_t{i} * on.model.bound;
  if (bits_of(on.mask.form) == 32) {
    for (int e = 0; e < entries; ++e) reinterpret_cast<float*>(row)[slot[e]] = 1;
  } else if (bits_of(on.mask.form) == 16) {
    for (int e = 0; e < entries; ++e) reinterpret_cast<std::uint16_t*>(row)[slot[e]] = 1;
  } else if (bits_of(on.mask.form) == 8) {
    for (int e = 0; e < entries; ++e) row[slot[e]] = std::byte{1};
  } else {
    for (int e = 0; e < entries; ++e) row[slot[e] / 8] &= std::byte{0x7F};
  }
}

/// Bytes that must be touched: the lists, and an element of the mask for each that is written.
double bytes_of(masked const& on, double elements) {
  return lanes * (4.0 * on.model.bound + elements * bits_of(on.mask.form) / 8);
}

bool fits(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0));
  return bench::has_memory(state, bench::listed_model::bytes(entries) + 4.0 * lanes * entries);
}

void hide_dropped(benchmark::State& state) {
  if (!fits(state)) return;
  int const threads = static_cast<int>(state.range(2));
  masked on(static_cast<int>(state.range(0)), static_cast<kv::mask_form>(state.range(1)));
  kv::host_executor exec(threads);
  exec.reserve(4 * (static_cast<std::size_t>(on.model.bound) + 16));
  kv::cache const cache = on.model.view();
  kv::keep_set const keep = on.model.keep();
  bool const additive = on.mask.form < kv::mask_form::boolean;
  auto const put_back = [&] { std::memset(on.memory.data(), additive ? 0 : 0xFF, on.memory.size()); };
  put_back();
  auto const hide = [&] { kv::ops::hide_dropped(exec, keep, cache, on.mask); };
  hide();
  if (!is_mask(on, true, [](bool stays) { return !stays; })) return state.SkipWithError("wrong result");
  std::vector<std::vector<char>> marks(static_cast<std::size_t>(threads),
                                       std::vector<char>(static_cast<std::size_t>(on.model.bound)));
  auto const plain = [&] {
    exec.for_each(lanes, [&](int i, int worker) { plain_hide(on, keep, i, marks[static_cast<std::size_t>(worker)]); });
  };
  bool const peer = on.mask.form == kv::mask_form::additive_f32;
  auto const touch = [&] {
    exec.for_each(lanes, [&](int i, int) {
      auto const kept = keep.listed(i);
      bench::floors::read_piece(exec.simd_level(), reinterpret_cast<std::byte const*>(kept.data()), 4 * kept.size());
      touch_elements(on, i, on.model.bound / 4 * 3);
      int const* const rest = on.model.list.data() + std::int64_t{i} * on.model.bound + on.model.bound / 4 * 3;
      bench::floors::read_piece(exec.simd_level(), reinterpret_cast<std::byte const*>(rest),
                                static_cast<std::size_t>(on.model.bound));  // the last quarter of the list
    });
  };
  bench::rounds const taken = bench::in_turn_after(state, put_back, hide, [&] { peer ? plain() : void(); }, touch);
  bench::report_share(state, taken, 0, 2);
  if (peer) state.counters["over_loop"] = taken.ratio(0, 1);
  bench::report_rate(state, bytes_of(on, on.model.bound * 0.75), taken.seconds(0), threads);
}

void show_entries(benchmark::State& state) {
  if (!fits(state)) return;
  int const threads = static_cast<int>(state.range(2));
  masked on(static_cast<int>(state.range(0)), static_cast<kv::mask_form>(state.range(1)));
  kv::host_executor exec(threads);
  kv::cache const cache = on.model.view();
  auto const show = [&] { kv::ops::show_entries(exec, cache, on.mask); };
  show();
  if (!is_mask(on, false, [](bool) { return false; })) return state.SkipWithError("wrong result");
  auto const plain = [&] { exec.for_each(lanes, [&](int i, int) { plain_show(on, i); }); };
  bool const peer = on.mask.form == kv::mask_form::additive_f32;
  auto const touch = [&] {
    exec.for_each(lanes, [&](int i, int) {
      bench::floors::write_piece(exec.simd_level(), on.memory.data() + on.row * static_cast<std::size_t>(i), on.row,
                                 false);
      touch_elements(on, i, on.model.bound);
    });
  };
  bench::rounds const taken = bench::in_turn(state, show, [&] { peer ? plain() : void(); }, touch);
  bench::report_share(state, taken, 0, 2);
  if (peer) state.counters["over_loop"] = taken.ratio(0, 1);
  bench::report_rate(state, bytes_of(on, on.model.bound), taken.seconds(0), threads);
}

constexpr auto f32 = static_cast<int>(kv::mask_form::additive_f32);
constexpr auto bf16 = static_cast<int>(kv::mask_form::additive_bf16);
constexpr auto bits = static_cast<int>(kv::mask_form::bits);
void sizes(benchmark::internal::Benchmark* of) {
  of->ArgNames({"entries", "form", "threads"})
      ->ArgsProduct({{4096, 32768}, {f32, bf16, bits}, {1, 2}})
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(20);
}
BENCHMARK(hide_dropped)->Apply(sizes);
BENCHMARK(show_entries)->Apply(sizes);

}  // namespace
