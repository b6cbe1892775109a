// SPDX-License-Identifier: Apache-2.0
// rerotate over a whole model's keys, after a quarter was kept by chance (every key turns by another step) or all but
// the newest and a sink (all turn by one), against a loop over a table of cosines and a copy of the keys. The floor
// reads and writes the keys and positions, and reads the cosines and sines of every turn that is not the one before it.
#include <kvpolicy/ops/rerotate.hpp>

#include "measure.hpp"
#include "model.hpp"

namespace {

namespace kv = kvpolicy;

constexpr int lanes = 36 * 8, dims = 128, pairs = dims / 2;

/// Keys [lane][entry][dim], and the position that each was rotated at.
struct turned {
  turned(int entries, kv::codec type, bool scattered)
      : bound(entries),
        element(type),
        row(static_cast<std::size_t>(kv::bytes_of(type)) * dims),
        keys(row * lanes * static_cast<std::size_t>(entries)),
        first(static_cast<std::size_t>(lanes) * static_cast<std::size_t>(entries)),
        count(lanes, entries) {
    bench::fill_elements(keys, type, 1, 1);
    bench::noise from(9);
    for (int i = 0; i < lanes; ++i) {
      for (int e = 0, at = 0; e < entries; ++e, at += 1 + from.below(7))
        first[static_cast<std::size_t>(i * entries + e)] = scattered ? at : (e < 4 ? e : e + 3 * entries);
    }
    for (int i = 0; i < lanes; ++i) most = std::max(most, first[static_cast<std::size_t>((i + 1) * entries - 1)]);
    position = first;
  }
  [[nodiscard]] static double bytes(int entries, kv::codec element) {
    return 1.0 * lanes * entries * (kv::bytes_of(element) * dims + 8) + 4.0 * 2 * pairs * 4 * entries;
  }
  [[nodiscard]] std::byte* key(int lane, int e) const {
    return keys.data() +
           row * (static_cast<std::size_t>(lane) * static_cast<std::size_t>(bound) + static_cast<std::size_t>(e));
  }
  kv::cache view() {
    std::int64_t const width = kv::bytes_of(element), bytes = width * dims, n = bound;
    kv::cache made{.shape = bench::whole_model,
                   .k = {.base = keys.data(),
                         .element = element,
                         .channels = dims,
                         .layer_stride = bytes * n * 8,
                         .token_stride = bytes,
                         .head_stride = bytes * n,
                         .channel_stride = width},
                   .where = kv::identity_map(bound)};
    made.lanes = {.layer_end = 36,
                  .heads = 8,
                  .capacity = bound,
                  .count = {count.data(), 0, 8, 1},
                  .position = {position.data(), 0, 8 * n, n}};
    return made;
  }
  /// Keys stand at their first positions again, whatever they are by now.
  void put_back() { position = first; }

  int bound;
  kv::codec element;
  std::size_t row;
  bench::memory keys;
  std::vector<int> first, position, count;
  int most = 0;
};

/// cos and sin of every step, as engines keep them for their own rotation: [step][pair][2].
std::vector<float> table_of_steps(int steps) {
  std::vector<float> made;
  made.reserve(static_cast<std::size_t>(steps) * pairs * 2);
  for (int step = 0; step < steps; ++step) {
    for (int pair = 0; pair < pairs; ++pair) {
      double const angle = step * std::pow(10000.0, -2.0 * pair / dims);
      made.push_back(static_cast<float>(std::cos(angle)));
      made.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return made;
}

/// What one would write: a lane's keys turn back by the table, pair by pair.
template <class Get, class Put>
void plain_turn(turned& on, std::vector<float> const& table, int lane, Get const& get, Put const& put) {
  for (int e = 0; e < on.bound; ++e) {
    int& position = on.position[static_cast<std::size_t>(lane * on.bound + e)];
    if (position == e) continue;
    float const* const turn = table.data() + std::int64_t{position - e} * 2 * pairs;
    std::byte* const key = on.key(lane, e);
    for (int pair = 0; pair < pairs; ++pair) {
      float const x = get(key, pair), y = get(key, pair + pairs);
      put(key, pair, x * turn[2 * pair] + y * turn[2 * pair + 1]);
      put(key, pair + pairs, y * turn[2 * pair] - x * turn[2 * pair + 1]);
    }
    position = e;
  }
}
void plain_turn(turned& on, std::vector<float> const& table, int lane) {
  auto const f32 = [](std::byte* key, int d) -> float& { return reinterpret_cast<float*>(key)[d]; };
  auto const bf16 = [](std::byte* key, int d) -> std::uint16_t& { return reinterpret_cast<std::uint16_t*>(key)[d]; };
  if (on.element == kv::codec::f32) {
    plain_turn(on, table, lane, f32, [&](std::byte* key, int d, float to) { f32(key, d) = to; });
    return;
  }
  plain_turn(
      on, table, lane, [&](std::byte* key, int d) { return kv::from_bf16(bf16(key, d)); },
      [&](std::byte* key, int d, float to) { bf16(key, d) = kv::to_bf16(to); });
}

/// True if every 7th key of two lanes is what it was, turned in double, within the rounding of its type; and if the
/// positions are the ordinals.
template <class Turn>
bool turns(turned& on, Turn const& turn) {
  // Numbers up to sqrt(2) are rounded by half a unit of bf16 at most, 2^-8; of float by far less than 1e-6.
  double const slack = on.element == kv::codec::f32 ? 1e-6 : 0x1p-8 + 1e-6;
  std::vector<std::byte> before;
  for (int lane : {0, lanes - 1}) before.insert(before.end(), on.key(lane, 0), on.key(lane, on.bound - 1) + on.row);
  turn();
  for (int side : {0, 1}) {
    int const lane = side * (lanes - 1);
    for (int e = 0; e < on.bound; e += 7) {
      auto const was = [&](int d) {
        return static_cast<double>(kv::load(
            on.element,
            before.data() + static_cast<std::size_t>(side * on.bound + e) * on.row + d * on.view().k.channel_stride));
      };
      for (int pair = 0; pair < pairs; ++pair) {
        double const angle =
            (e - on.first[static_cast<std::size_t>(lane * on.bound + e)]) * std::pow(10000.0, -2.0 * pair / dims);
        double const x = was(pair) * std::cos(angle) - was(pair + pairs) * std::sin(angle);
        double const y = was(pair + pairs) * std::cos(angle) + was(pair) * std::sin(angle);
        auto const is = [&](int d) { return kv::load(on.element, on.key(lane, e) + d * on.view().k.channel_stride); };
        if (!(std::abs(is(pair) - x) <= slack && std::abs(is(pair + pairs) - y) <= slack)) return false;
      }
      if (on.position[static_cast<std::size_t>(lane * on.bound + e)] != e) return false;
    }
  }
  on.put_back();
  return true;
}

void rerotate(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0)), threads = static_cast<int>(state.range(3));
  auto const element = static_cast<kv::codec>(state.range(1));
  if (!bench::has_memory(state, turned::bytes(entries, element) + 2 * 37e6)) return;
  turned on(entries, element, state.range(2) != 0);
  std::vector<float> const table = table_of_steps(on.most - entries + 2);
  kv::host_executor exec(threads);
  kv::cache const cache = on.view();
  exec.reserve(kv::implementation<kv::ops::rerotate_t, kv::host>::scratch(cache));
  auto const turn = [&] { kv::ops::rerotate(exec, cache.lanes, cache, kv::rope{}); };
  auto const plain = [&] { exec.for_each(lanes, [&](int i, int) { plain_turn(on, table, i); }); };
  if (!turns(on, turn)) return state.SkipWithError("wrong result");
  if (!turns(on, plain)) return state.SkipWithError("wrong peer");
  std::size_t const bytes = on.keys.size() / 8;  // an eighth of the keys as source and target of a copy: a floor
  auto const copy = [&] { bench::floors::copy_pass(exec, on.keys.data(), on.keys.data() + bytes, bytes); };
  auto const touch = [&] {
    using bench::floors::touching;
    bench::floors::touch_pass(exec, {{touching::both, on.keys.data(), on.keys.size()},
                                     {touching::both, on.position.data(), 4 * on.position.size()}});
    exec.for_each(lanes, [&](int i, int) {
      for (int e = 0, last = 0; e < entries; ++e) {
        int const step = on.first[static_cast<std::size_t>(i * entries + e)] - e;
        if (step == last) continue;
        last = step;
        auto const* const angles = table.data() + std::int64_t{step} * 2 * pairs;
        bench::floors::read_piece(exec.simd_level(), reinterpret_cast<std::byte const*>(angles), 8 * pairs);
      }
    });
  };
  bench::rounds const taken = bench::in_turn_after(state, [&] { on.put_back(); }, turn, plain, copy, touch);
  bench::report_share(state, taken, 0, 3);
  state.counters["over_loop"] = taken.ratio(0, 1);
  state.counters["over_copy"] = taken.ratio(0, 2) / 8;
  bench::report_rate(state, static_cast<double>(on.keys.size()), taken.seconds(0), threads);
}
constexpr auto f32 = static_cast<int>(kv::codec::f32), bf16 = static_cast<int>(kv::codec::bf16);
BENCHMARK(rerotate)
    ->ArgNames({"entries", "element", "scattered", "threads"})
    ->ArgsProduct({{4096}, {f32, bf16}, {0, 1}, {1, 2}})
    ->ArgsProduct({{32768}, {bf16}, {0, 1}, {2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(5);

}  // namespace
