// SPDX-License-Identifier: Apache-2.0
// Every applier over a whole model's lanes, each with tables of its own, against a plain loop that reads or writes once
// what the applier must: tables, positions, and the rows that stay or move.
#include "listed_model.hpp"
#include "measure.hpp"

namespace {

namespace kv = kvpolicy;
using bench::floors::touching;

constexpr int lanes = bench::listed_model::lanes, page = 16;
constexpr std::size_t row = 256;  // 128 numbers in bf16

/// One decision of a lane for itself: a random choice of `budget` entries stays.
struct decided {
  using policy_type = kv::eviction<kv::random_scores>;

  template <class Applier>
  decided(int threads, int budget, kv::cache const& in, Applier const& how)
      : exec(threads),
        policy{.score = kv::random_scores{}, .budget = kv::per_lane{budget}},
        held(kv::make_state(exec, policy, in)),
        plan(kv::make_plan(exec, policy, in, how)) {
    kv::decide(exec, policy, kv::signals{in.lanes}, held, plan);
    plan.publish(kv::keep_set(plan.keep()));  // without epochs: it is carried out again and again
  }
  template <class Applier>
  void apply(Applier const& how, kv::cache& in) {
    held.history().reset(0);  // the cache is as it was: no key has turned yet
    kv::apply(exec, how, plan, in, held);
  }
  [[nodiscard]] bench::floors::column keep() const {
    kv::keep_set const& made = plan.keep();
    return {touching::read, made.indices, 4 * static_cast<std::size_t>(made.indptr[made.segments()])};
  }

  kv::host_executor exec;
  policy_type policy;
  kv::state<kv::host_executor> held;
  kv::plan<kv::host_executor> plan;
};

/// Addresses of rows that no applier of lists reads: their pages never become memory.
bench::memory untouched(int entries) { return bench::memory(row * lanes * (static_cast<std::size_t>(entries) + 1)); }

std::size_t bytes_of(std::vector<int> const& of) { return 4 * of.size(); }

/// A quarter of the entries stays, and they may be anywhere: all positions are read, and a quarter of them is written.
bench::floors::column read_positions(std::vector<int> const& of) {
  return {touching::read, of.data() + of.size() / 4, bytes_of(of) / 4 * 3};
}
bench::floors::column write_positions(std::vector<int> const& of) {
  return {touching::both, of.data(), bytes_of(of) / 4};
}

/// Appliers that edit lists and touch no row: 32k entries of each lane, of which a quarter stays.
struct listed {
  explicit listed(int entries) : model(entries, entries / 4), map(model.list), freed(map.size()), freed_count(lanes) {}
  void put_back() {
    model.reset();
    map = model.list;
  }
  [[nodiscard]] kv::unit_list released() { return {model.rows_of(freed), {freed_count.data(), 0, 8, 1}}; }

  bench::listed_model model;
  std::vector<int> map, freed, freed_count;
};

template <class Applier, class Touch>
void run(benchmark::State& state, listed& on, Applier const& how, Touch const& touch) {
  kv::cache cache = on.model.view();
  bench::memory const k = untouched(on.model.bound), v = untouched(on.model.bound);
  cache.k.base = k.data();
  cache.v.base = v.data();
  decided by(static_cast<int>(state.range(0)), on.model.bound / 4, cache, how);
  auto const taken =
      bench::in_turn_after(state, [&] { on.put_back(); }, [&] { by.apply(how, cache); }, [&] { touch(by); });
  on.put_back();
  by.apply(how, cache);
  for (int const count : on.model.count) {
    if (count != on.model.bound / 4) return state.SkipWithError("wrong result");
  }
  bench::report_share(state, taken, 0, 1);
}

constexpr int many = 32768;
bool fits(benchmark::State& state) { return bench::has_memory(state, 10.0 * bench::listed_model::bytes(many)); }

void list_rewrite(benchmark::State& state) {
  if (!fits(state)) return;
  listed on(many);
  run(state, on, kv::list_rewrite<>{.list = on.model.rows_of(on.model.list), .freed = on.released()}, [&](decided& by) {
    std::size_t const all = bytes_of(on.map);
    bench::floors::touch_pass(by.exec, {by.keep(),
                                        {touching::both, on.model.list.data(), all},
                                        write_positions(on.model.position),
                                        read_positions(on.model.position),
                                        {touching::write, on.freed.data(), all / 4 * 3}});
  });
}

void dead_slot(benchmark::State& state) {
  if (!fits(state)) return;
  listed on(many);
  run(state, on,
      kv::dead_slot<>{
          .list = on.model.rows_of(on.model.list), .map = on.model.rows_of(on.map), .dead = 0, .freed = on.released()},
      [&](decided& by) {
        std::size_t const all = bytes_of(on.map);
        bench::floors::touch_pass(by.exec, {by.keep(),
                                            {touching::both, on.model.list.data(), all},
                                            {touching::both, on.map.data(), all},
                                            write_positions(on.model.position),
                                            read_positions(on.model.position),
                                            {touching::write, on.freed.data(), all / 4 * 3}});
      });
}

void mask(benchmark::State& state) {
  if (!fits(state)) return;
  listed on(many);
  std::size_t const width = (static_cast<std::size_t>(many) + 16) * 4;
  bench::memory const elements(width * lanes);
  std::memset(elements.data(), 0, elements.size());
  auto const bytes = static_cast<std::int64_t>(width);
  kv::mask_rows const rows{{elements.data(), 0, 8 * bytes, bytes}, kv::mask_form::additive_f32, many + 1};
  run(state, on, kv::mask{on.model.rows_of(on.model.list), rows}, [&](decided& by) {
    bench::floors::touch_pass(by.exec,
                              {by.keep(), write_positions(on.model.position), read_positions(on.model.position)});
    by.exec.for_each(lanes, [&](int i, int) {  // the list, and an element for each entry that goes, at its slot
      auto* const to = reinterpret_cast<float*>(elements.data() + width * static_cast<std::size_t>(i));
      int* const slot = on.model.row(on.model.list, i);
      bench::floors::write_piece(by.exec.simd_level(), reinterpret_cast<std::byte*>(slot), many * sizeof(int), true);
      for (int e = 0; e < many / 4 * 3; ++e) to[slot[e]] = 1;
    });
  });
}

/// 64 of 4k entries of a lane go: so many rows, at most, move into the holes.
void overwrite(benchmark::State& state) {
  constexpr int entries = 4096, gone = 64;
  std::size_t const bytes = row * lanes * (entries + 1);
  if (!bench::has_memory(state, 3.0 * static_cast<double>(bytes))) return;
  bench::listed_model model(entries, entries - gone);
  bench::memory const k(bytes), v(bytes);
  bench::fill_elements(k, kv::codec::bf16, 1, 1);
  bench::fill_elements(v, kv::codec::bf16, 1, 2);
  kv::cache cache = model.view();
  cache.k.base = k.data();
  cache.v.base = v.data();
  kv::overwrite const how{model.rows_of(model.list)};
  decided by(static_cast<int>(state.range(0)), entries - gone, cache, how);
  std::size_t const tables = bytes_of(model.list);
  auto const taken = bench::in_turn_after(
      state, [&] { model.reset(); }, [&] { by.apply(how, cache); },
      [&] {
        bench::floors::touch_pass(
            by.exec,
            {by.keep(), {touching::both, model.list.data(), tables}, {touching::both, model.position.data(), tables}});
        by.exec.for_each(lanes, [&](int i, int) {
          kv::lane const one = cache.lanes.at(i);
          for (kv::plane const* const rows : {&cache.k, &cache.v}) {
            for (int hole = 0; hole < gone; ++hole) {
              std::memcpy(rows->row(one.layer, {1 + hole * gone, 0}, one.head),
                          rows->row(one.layer, {entries - hole, 0}, one.head), row);
            }
          }
        });
      });
  model.reset();
  by.apply(how, cache);
  if (model.count.back() != entries - gone) return state.SkipWithError("wrong result");
  bench::report_share(state, taken, 0, 1);
}

/// Rows stay in order at the front: a quarter of 4k entries. `how` moves keys and values; keys may turn on their way.
template <class Applier>
void move_rows(benchmark::State& state, Applier const& how) {
  constexpr int entries = 4096;
  if (!bench::has_memory(state, 1.5 * bench::model_cache::bytes(bench::whole_model, entries, kv::codec::bf16))) return;
  bench::model_cache model(bench::whole_model, entries, kv::codec::bf16);
  kv::cache cache = model.view();
  decided by(static_cast<int>(state.range(0)), entries / 4, cache, how);
  auto const taken = bench::in_turn_after(
      state, [&] { model.reset(); }, [&] { by.apply(how, cache); },
      [&] {
        by.exec.for_each(lanes, [&](int i, int) {
          kv::lane const one = cache.lanes.at(i);
          int* const position = cache.lanes.position.row(one);
          int to = 0;
          for (int const e : by.plan.keep().listed(i)) {
            for (kv::plane const* const rows : {&cache.k, &cache.v}) {
              std::memcpy(rows->row(one.layer, {0, to}, one.head), rows->row(one.layer, {0, e}, one.head), row);
            }
            position[to++] = position[e];
          }
        });
      });
  model.reset();
  by.apply(how, cache);
  if (model.count(lanes - 1) != entries / 4) return state.SkipWithError("wrong result");
  bench::report_share(state, taken, 0, 1);
}
void compact(benchmark::State& state) { move_rows(state, kv::compact{}); }
void compact_rerotated(benchmark::State& state) { move_rows(state, kv::compact_rerotated{}); }

/// One entry in 64 is kept, so about a block in five stays.
void drop_blocks(benchmark::State& state) {
  constexpr int entries = many, blocks = entries / page;
  if (!fits(state)) return;
  bench::listed_model model(entries, entries / 64);
  std::vector<int> table(static_cast<std::size_t>(lanes) * blocks), freed(table.size()), freed_count(lanes);
  auto const rows_of = [](std::vector<int>& of) { return kv::by_lane<int>{of.data(), 0, 8 * blocks, blocks}; };
  auto const put_back = [&] {
    model.reset();
    for (std::size_t i = 0; i < table.size(); ++i)
      table[i] = static_cast<int>(static_cast<std::int64_t>(i) * 40503 % blocks);
  };
  put_back();
  kv::cache cache = model.view();
  bench::memory const k = untouched(entries), v = untouched(entries);
  for (kv::plane* const rows : {&cache.k, &cache.v}) {
    rows->base = rows == &cache.k ? k.data() : v.data();
    rows->token_stride = static_cast<std::int64_t>(row);
    rows->unit_stride = page * rows->token_stride;
    rows->head_stride = entries * rows->token_stride;
    rows->layer_stride = 8 * rows->head_stride;
  }
  cache.where = kv::block_table({table.data(), 0, 8 * blocks, blocks}, page, blocks);
  kv::drop_blocks const how{.table = rows_of(table), .freed = {rows_of(freed), {freed_count.data(), 0, 8, 1}}};
  decided by(static_cast<int>(state.range(0)), entries / 64, cache, how);
  std::vector<std::vector<int>> staying(lanes);
  for (int i = 0; i < lanes; ++i) {
    auto& of_lane = staying[static_cast<std::size_t>(i)];
    for (int const e : by.plan.keep().listed(i)) {
      if (of_lane.empty() || of_lane.back() != e / page) of_lane.push_back(e / page);
    }
  }
  auto const taken = bench::in_turn_after(
      state, put_back, [&] { by.apply(how, cache); },
      [&] {
        bench::floors::touch_pass(by.exec, {by.keep(),
                                            {touching::both, table.data(), bytes_of(table)},
                                            {touching::write, freed.data(), bytes_of(freed) / 5 * 4}});
        by.exec.for_each(lanes, [&](int i, int) {  // the positions of the blocks that stay
          int* const position = model.row(model.position, i);
          int* to = position;
          for (int const block : staying[static_cast<std::size_t>(i)]) {
            std::memcpy(to, position + block * page, page * sizeof(int));
            to += page;
          }
        });
      });
  put_back();
  by.apply(how, cache);
  if (model.count.front() < entries / 64 || model.count.front() > entries / 2)
    return state.SkipWithError("wrong result");
  bench::report_share(state, taken, 0, 1);
}

#define KVPOLICY_SHARE(name)   \
  BENCHMARK(name)              \
      ->Name("applier/" #name) \
      ->ArgName("threads")     \
      ->Arg(1)                 \
      ->Arg(2)                 \
      ->UseManualTime()        \
      ->Iterations(9)          \
      ->Unit(benchmark::kMillisecond)
KVPOLICY_SHARE(list_rewrite);
KVPOLICY_SHARE(dead_slot);
KVPOLICY_SHARE(mask);
KVPOLICY_SHARE(overwrite);
KVPOLICY_SHARE(compact);
KVPOLICY_SHARE(compact_rerotated);
KVPOLICY_SHARE(drop_blocks);

}  // namespace
