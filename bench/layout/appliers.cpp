// SPDX-License-Identifier: Apache-2.0
// Every applier against a copy of the bytes that it must move: a quarter of the entries kept, or one dropped.
#include "../defaults.hpp"

namespace {

namespace kv = kvpolicy;

/// One layer of 8 heads over slots, [slot][head][dim] in f32, one list for all heads, and a map by position.
struct slot_layer {
  explicit slot_layer(int entries)
      : k(static_cast<std::size_t>(entries + 1) * bench::heads * bench::dims),
        v(k),
        list(static_cast<std::size_t>(entries)),
        map(list),
        freed(list),
        position(list),
        mask_memory(static_cast<std::size_t>(entries) + 1),
        bound(entries) {
    bench::fill_rows(k, 1);
    bench::fill_rows(v, 2);
    reset();
  }

  /// Slots in a scattered order, as a pool hands them out after a while.
  void reset() {
    count = bound;
    for (int e = 0; e < bound; ++e) {
      position[static_cast<std::size_t>(e)] = e;
      list[static_cast<std::size_t>(e)] = 1 + static_cast<int>(std::int64_t{e} * 40503 % bound);
    }
    map = list;
  }

  kv::cache view() {
    kv::plane const rows{.base = reinterpret_cast<std::byte*>(k.data()),
                         .channels = bench::dims,
                         .unit_stride = 4LL * bench::dims * bench::heads,
                         .head_stride = 4LL * bench::dims,
                         .channel_stride = 4};
    kv::cache cache{.shape = {1, bench::heads * bench::group, bench::heads, bench::dims},
                    .k = rows,
                    .v = rows,
                    .where = kv::slot_map({list.data()}, bound + 1)};
    cache.v.base = reinterpret_cast<std::byte*>(v.data());
    cache.lanes = {
        .layer_end = 1, .heads = bench::heads, .capacity = bound, .count = {&count}, .position = {position.data()}};
    return cache;
  }

  [[nodiscard]] std::size_t row_bytes() const { return sizeof(float) * bench::dims * bench::heads * 2; }

  std::vector<float> k, v;
  std::vector<int> list, map, freed, position;
  std::vector<float> mask_memory;
  int count = 0;
  int freed_count = 0;
  int bound;
};

/// Applies one decision again and again to a cache that is put back in between. `bytes(kept)`: what must move.
template <class Apply, class Bytes>
void run(benchmark::State& state, int kept, Apply const& apply, Bytes const& bytes) {
  int const entries = static_cast<int>(state.range(0));
  slot_layer layer(entries);
  kv::cache cache = layer.view();
  kv::host_executor exec(1);
  kv::eviction const policy{.score = kv::reduce_lanes<kv::random_scores>{{}, kv::granularity::sequence},
                            .budget = kv::per_lane{kept}};
  auto held = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  kv::decide(exec, policy, kv::signals{cache.lanes}, held, plan);
  plan.publish(kv::keep_set(plan.keep()));  // without epochs: it is carried out again and again
  for (auto _ : state) {
    apply(exec, layer, plan, cache, held);
    state.PauseTiming();
    if (layer.count < kept) return state.SkipWithError("wrong result");
    layer.reset();
    state.ResumeTiming();
  }
  bench::report_bytes(state, bytes(layer));
}

std::size_t ints(slot_layer const& of, int arrays) {
  return static_cast<std::size_t>(of.bound) * sizeof(int) * static_cast<std::size_t>(arrays);
}

void list_rewrite(benchmark::State& state) {
  run(
      state, static_cast<int>(state.range(0)) / 4,
      [](auto& exec, slot_layer& of, auto& plan, kv::cache& cache, auto& held) {
        kv::apply(exec, kv::list_rewrite<>{.list = {of.list.data()}, .freed = {{of.freed.data()}, {&of.freed_count}}},
                  plan, cache, held);
      },
      [](slot_layer const& of) { return ints(of, 2); });  // the list and the positions
}

void dead_slot(benchmark::State& state) {
  run(
      state, static_cast<int>(state.range(0)) / 4,
      [](auto& exec, slot_layer& of, auto& plan, kv::cache& cache, auto& held) {
        kv::apply(exec,
                  kv::dead_slot<>{.list = {of.list.data()},
                                  .map = {of.map.data()},
                                  .dead = 0,
                                  .freed = {{of.freed.data()}, {&of.freed_count}}},
                  plan, cache, held);
      },
      [](slot_layer const& of) { return ints(of, 3); });  // the list, the map and the positions
}

void mask(benchmark::State& state) {
  run(
      state, static_cast<int>(state.range(0)) / 4,
      [](auto& exec, slot_layer& of, auto& plan, kv::cache& cache, auto& held) {
        kv::mask_rows const rows{
            {reinterpret_cast<std::byte*>(of.mask_memory.data())}, kv::mask_form::additive_f32, of.bound + 1};
        kv::apply(exec, kv::mask{{of.list.data()}, rows}, plan, cache, held);
      },
      [](slot_layer const& of) { return ints(of, 3); });  // the list, the positions and the mask
}

void overwrite_few(benchmark::State& state) {
  run(
      state, static_cast<int>(state.range(0)) - 64,
      [](auto& exec, slot_layer& of, auto& plan, kv::cache& cache, auto& held) {
        kv::apply(exec, kv::overwrite{{of.list.data()}}, plan, cache, held);
      },
      [](slot_layer const& of) { return ints(of, 2) + 64 * of.row_bytes(); });  // list, positions, at most 64 rows
}

void compact_rows(benchmark::State& state) {
  run(
      state, static_cast<int>(state.range(0)) / 4,
      [](auto& exec, slot_layer&, auto& plan, kv::cache& cache, auto& held) {
        kv::apply(exec, kv::compact{}, plan, cache, held);
      },
      [](slot_layer const& of) { return static_cast<std::size_t>(of.bound / 4) * of.row_bytes(); });
}

void compact_rerotated(benchmark::State& state) {
  run(
      state, static_cast<int>(state.range(0)) / 4,
      [](auto& exec, slot_layer&, auto& plan, kv::cache& cache, auto& held) {
        kv::apply(exec, kv::compact_rerotated{}, plan, cache, held);
      },
      [](slot_layer const& of) { return static_cast<std::size_t>(of.bound / 4) * of.row_bytes(); });
}

void drop_blocks(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0));
  bench::layer_cache layer(entries);
  kv::cache cache = layer.view();
  std::vector<int> pages(static_cast<std::size_t>(bench::heads) * static_cast<std::size_t>(entries / 16));
  cache.k.unit_stride = cache.v.unit_stride = 16 * cache.k.token_stride;
  kv::by_lane<int> const table{pages.data(), 0, 0, entries / 16};
  cache.where = kv::block_table({pages.data(), 0, 0, entries / 16}, 16, entries / 16);
  kv::host_executor exec(1);
  auto const policy = kv::policies::streaming_llm({.budget = entries / 4});
  auto held = kv::make_state(exec, policy, cache);
  auto plan = kv::make_plan(exec, policy, cache);
  kv::decide(exec, policy, kv::signals{cache.lanes}, held, plan);
  plan.publish(kv::keep_set(plan.keep()));  // without epochs: it is carried out again and again
  for (auto _ : state) {
    state.PauseTiming();
    layer.reset();
    for (std::size_t i = 0; i < pages.size(); ++i)
      pages[i] = static_cast<int>(i % static_cast<std::size_t>(entries / 16));
    state.ResumeTiming();
    kv::apply(exec, kv::drop_blocks{.table = table}, plan, cache, held);
  }
  if (layer.count[0] < entries / 4) state.SkipWithError("wrong result");
  bench::report_bytes(state, static_cast<std::size_t>(entries) * bench::heads * sizeof(int));  // the positions
}

#define KVPOLICY_BENCH(name) \
  BENCHMARK(name)->ArgName("entries")->Arg(4096)->Arg(32768)->Arg(131072)->UseRealTime()->Unit(benchmark::kMicrosecond)
KVPOLICY_BENCH(list_rewrite);
KVPOLICY_BENCH(dead_slot);
KVPOLICY_BENCH(mask);
KVPOLICY_BENCH(overwrite_few);
KVPOLICY_BENCH(compact_rows);
KVPOLICY_BENCH(compact_rerotated);
KVPOLICY_BENCH(drop_blocks);

}  // namespace
