// SPDX-License-Identifier: Apache-2.0
// The verbs that give back units, over a whole model's lanes: rows of 256 bytes into holes, against a memcpy of the
// rows that move; blocks of 16 out of tables, against the loop that one would write.
#include <kvpolicy/ops/units.hpp>

#include "listed_model.hpp"
#include "measure.hpp"

namespace {

namespace kv = kvpolicy;

constexpr int lanes = bench::listed_model::lanes, page = 16;
constexpr std::size_t row = 256;

std::span<kv::recorded_column const> const no_columns{};

/// Rows that have to move: kept ones that do not stand in the lane's lowest slots.
std::int64_t rows_to_move(bench::listed_model& model, int i) {
  auto const kept = model.keep().listed(i);
  int const* const slot = model.row(model.list, i);
  std::vector<int> sorted(slot, slot + model.bound);
  std::sort(sorted.begin(), sorted.end());
  int const below = sorted[kept.size() - 1];
  return std::count_if(kept.begin(), kept.end(), [&](int e) { return slot[e] > below; });
}

/// The rows of a lane that have to move, by their slots, each with a slot that becomes free below.
std::vector<std::pair<int, int>> moves_of(bench::listed_model& model, int i) {
  auto const kept = model.keep().listed(i);
  int const* const slot = model.row(model.list, i);
  std::vector<int> sorted(slot, slot + model.bound);
  std::sort(sorted.begin(), sorted.end());
  int const below = sorted[kept.size() - 1];
  std::vector<bool> used(sorted.size() + 2);
  for (int const e : kept) used[static_cast<std::size_t>(slot[e])] = true;
  std::vector<int> holes;
  for (int const one : sorted) {
    if (one <= below && !used[static_cast<std::size_t>(one)]) holes.push_back(one);
  }
  std::vector<std::pair<int, int>> made;
  for (int const e : kept) {
    if (slot[e] > below) made.emplace_back(slot[e], holes[made.size()]);
  }
  return made;
}

/// True if the lanes' kept rows, in the order of their lists, are what they were, and stand in the lowest slots.
bool fills(bench::listed_model& model, kv::cache const& cache, kv::host_executor& exec) {
  std::vector<std::byte> before;
  std::vector<int> const list = model.list;
  for (int i : {0, lanes - 1}) {
    std::byte const* const pool = cache.v.row(cache.lanes.at(i).layer, {0, 0}, cache.lanes.at(i).head);
    before.insert(before.end(), pool, pool + row * static_cast<std::size_t>(model.bound + 1));
  }
  kv::ops::fill_holes(exec, model.keep(), cache, model.rows_of(model.list), std::span<kv::recorded_column const>{});
  std::byte const* was = before.data();
  for (int i : {0, lanes - 1}) {
    auto const kept = model.keep().listed(i);
    std::vector<int> left(list.data() + std::int64_t{i} * model.bound, list.data() + std::int64_t{i + 1} * model.bound);
    int const* const slot = model.row(model.list, i);
    for (std::size_t at = 0; at < kept.size(); ++at) {
      std::byte const* const is = cache.v.row(cache.lanes.at(i).layer, {slot[at], 0}, cache.lanes.at(i).head);
      if (std::memcmp(is, was + row * static_cast<std::size_t>(left[static_cast<std::size_t>(kept[at])]), row) != 0)
        return false;
    }
    std::sort(left.begin(), left.end());
    std::vector<int> used(slot, slot + kept.size());
    std::sort(used.begin(), used.end());
    if (!std::equal(used.begin(), used.end(), left.begin())) return false;
    was += row * static_cast<std::size_t>(model.bound + 1);
  }
  model.reset();
  return true;
}

void fill_holes(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0)), threads = static_cast<int>(state.range(2));
  std::size_t const bytes = row * lanes * (static_cast<std::size_t>(entries) + 1);
  if (!bench::has_memory(state, 2.5 * static_cast<double>(bytes) + bench::listed_model::bytes(entries))) return;
  bench::listed_model model(entries, entries - static_cast<int>(state.range(1)));
  bench::memory const k(bytes), v(bytes);
  bench::fill_elements(k, kv::codec::bf16, 1, 1);
  bench::fill_elements(v, kv::codec::bf16, 1, 2);
  kv::cache cache = model.view();
  cache.k.base = k.data();
  cache.v.base = v.data();
  kv::host_executor exec(threads);
  exec.reserve(kv::implementation<kv::ops::fill_holes_t, kv::host>::scratch(cache));
  kv::keep_set const keep = model.keep();
  if (!fills(model, cache, exec)) return state.SkipWithError("wrong result");
  std::int64_t rows = 0;
  for (int i = 0; i < lanes; ++i) rows += rows_to_move(model, i);
  std::vector<std::vector<std::pair<int, int>>> moves;
  for (int i = 0; i < lanes; ++i) moves.push_back(moves_of(model, i));
  std::size_t const moved = 2 * row * static_cast<std::size_t>(rows);
  bench::memory const from(moved), to(moved);
  std::memset(from.data(), 1, moved);
  std::memset(to.data(), 2, moved);
  bench::rounds const taken = bench::in_turn_after(
      state, [&] { model.reset(); },
      [&] {
        kv::ops::fill_holes(exec, keep, cache, model.rows_of(model.list), std::span<kv::recorded_column const>{});
      },
      [&] { bench::floors::copy_pass(exec, to.data(), from.data(), moved); },
      [&] {
        using bench::floors::touching;
        bench::floors::touch_pass(exec, {{touching::both, model.list.data(), 4 * model.list.size()},
                                         {touching::both, model.position.data(), 4 * model.position.size()},
                                         {touching::read, model.ordinal.data(), 4 * model.ordinal.size()}});
        exec.for_each(lanes, [&](int i, int) {
          for (kv::plane const* const each : {&cache.k, &cache.v}) {
            std::byte* const pool = each->row(cache.lanes.at(i).layer, {0, 0}, cache.lanes.at(i).head);
            for (auto const& [source, hole] : moves[static_cast<std::size_t>(i)])
              std::memcpy(pool + row * static_cast<std::size_t>(hole), pool + row * static_cast<std::size_t>(source),
                          row);
          }
        });
      });
  bench::report_share(state, taken, 0, 2);
  state.counters["over_memcpy"] = taken.ratio(0, 1);
  state.counters["rows"] = static_cast<double>(2 * rows);
  bench::report_rate(state, static_cast<double>(moved), taken.seconds(0), threads);
}
BENCHMARK(fill_holes)
    ->ArgNames({"entries", "gone", "threads"})
    ->ArgsProduct({{4096}, {64, 1024}, {1, 2}})
    ->ArgsProduct({{32768}, {64, 8192}, {2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(10);

/// A block table a lane over its own pool, beside a model of which one entry in 64 stays: a block in five.
struct paged {
  explicit paged(int entries)
      : model(entries, entries / 64),
        blocks(entries / page),
        table(static_cast<std::size_t>(lanes) * static_cast<std::size_t>(blocks)),
        freed(table.size()),
        freed_count(lanes) {
    reset();
  }
  void reset() {
    model.reset();
    for (std::size_t i = 0; i < table.size(); ++i)
      table[i] = static_cast<int>(static_cast<std::int64_t>(i) * 40503 % blocks);
  }
  kv::cache view() {
    kv::cache made = model.view();
    made.where = kv::block_table({table.data(), 0, std::int64_t{8} * blocks, blocks}, page, blocks);
    return made;
  }
  [[nodiscard]] kv::by_lane<int> rows_of(std::vector<int>& of) const {
    return {of.data(), 0, std::int64_t{8} * blocks, blocks};
  }
  bench::listed_model model;
  int blocks;
  std::vector<int> table, freed, freed_count;
};

/// One lane by a plain loop: a mark a block, then a pass over the blocks.
void plain_drop(paged& on, int i, std::vector<char>& wanted) {
  std::fill(wanted.begin(), wanted.end(), char{0});
  for (int const e : on.model.keep().listed(i)) wanted[static_cast<std::size_t>(e / page)] = 1;
  int* const table = on.table.data() + std::int64_t{i} * on.blocks;
  int* const freed = on.freed.data() + std::int64_t{i} * on.blocks;
  int* const position = on.model.row(on.model.position, i);
  int stays = 0, gone = 0;
  for (int block = 0; block < on.blocks; ++block) {
    if (wanted[static_cast<std::size_t>(block)] == 0) {
      freed[gone++] = table[block];
      continue;
    }
    std::copy_n(position + block * page, page, position + stays * page);
    table[stays++] = table[block];
  }
  std::copy_n(freed, gone, table + stays);
  on.freed_count[static_cast<std::size_t>(i)] = gone;
  on.model.count[static_cast<std::size_t>(i)] = stays * page;
}

/// Everything that a drop writes.
std::vector<std::vector<int>> written(paged const& on) {
  std::vector<int> position;
  for (int i = 0; i < lanes; ++i) {
    int const* const first = on.model.position.data() + std::int64_t{i} * on.model.bound;
    position.insert(position.end(), first, first + on.model.count[static_cast<std::size_t>(i)]);
  }
  return {on.table, on.freed, on.freed_count, on.model.count, position};
}

void drop_units(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0)), threads = static_cast<int>(state.range(1));
  if (!bench::has_memory(state, 2 * bench::listed_model::bytes(entries))) return;
  paged on(entries);
  kv::cache const cache = on.view();
  kv::host_executor exec(threads);
  exec.reserve(kv::implementation<kv::ops::drop_units_t, kv::host>::scratch(cache));
  kv::keep_set const keep = on.model.keep();
  kv::unit_list const freed{on.rows_of(on.freed), {on.freed_count.data(), 0, 8, 1}};
  kv::list_edit<> const edit{.list = on.rows_of(on.table), .freed = freed};
  auto const drop = [&] { kv::ops::drop_units(exec, keep, cache, edit, no_columns, nullptr); };
  std::vector<std::vector<char>> wanted(static_cast<std::size_t>(threads),
                                        std::vector<char>(static_cast<std::size_t>(on.blocks)));
  auto const plain = [&] {
    exec.for_each(lanes, [&](int i, int worker) { plain_drop(on, i, wanted[static_cast<std::size_t>(worker)]); });
  };
  plain();
  auto const expected = written(on);
  on.reset();
  drop();
  if (written(on) != expected) return state.SkipWithError("wrong result");
  std::vector<std::vector<int>> staying(static_cast<std::size_t>(lanes));  // blocks, whose positions move
  for (int i = 0; i < lanes; ++i) {
    auto& blocks = staying[static_cast<std::size_t>(i)];
    for (int const e : keep.listed(i)) {
      if (blocks.empty() || blocks.back() != e / page) blocks.push_back(e / page);
    }
  }
  auto const touch = [&] {
    using bench::floors::touching;
    std::size_t const blocks = 4 * on.table.size();
    bench::floors::touch_pass(exec, {{touching::read, on.model.ordinal.data(), 4 * on.model.ordinal.size()},
                                     {touching::both, on.table.data(), blocks},
                                     {touching::write, on.freed.data(), blocks}});
    exec.for_each(lanes, [&](int i, int) {
      int* const position = on.model.row(on.model.position, i);
      int* to = position;
      for (int const block : staying[static_cast<std::size_t>(i)]) {
        std::memcpy(to, position + block * page, page * sizeof(int));
        to += page;
      }
    });
  };
  bench::rounds const taken = bench::in_turn_after(state, [&] { on.reset(); }, drop, plain, touch);
  bench::report_share(state, taken, 0, 2);
  state.counters["over_loop"] = taken.ratio(0, 1);
  bench::report_rate(state, 4.0 * lanes * (entries + on.blocks), taken.seconds(0), threads);  // positions and tables
}
BENCHMARK(drop_units)
    ->ArgNames({"entries", "threads"})
    ->ArgsProduct({{4096, 32768}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(20);

}  // namespace
