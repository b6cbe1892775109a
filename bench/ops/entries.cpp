// SPDX-License-Identifier: Apache-2.0
// The verbs that change or check counts, and those that move entries of lanes as a whole, over a whole model: each
// against a plain loop that reads or writes once what the verb must.
#include <kvpolicy/ops/copy_rows.hpp>
#include <kvpolicy/ops/count_rows.hpp>
#include <kvpolicy/ops/entries.hpp>

#include "listed_model.hpp"
#include "measure.hpp"

namespace {

namespace kv = kvpolicy;
using bench::floors::touching;

constexpr int lanes = bench::listed_model::lanes;
constexpr int entries = 4096;

/// Tables of a model, a decision to keep a quarter, and a recorded column of floats.
struct counted {
  explicit counted(int threads)
      : exec(threads), model(entries, entries / 4), cache(model.view()), column(model.list.size()), dropped(lanes) {
    about = {kv::recorded_column{
        .about = {"number", kv::column_extent::lane_entry, kv::on_move::permute, 4, 0},
        .rows = {reinterpret_cast<std::byte*>(column.data()), 0, std::int64_t{32} * entries, 4LL * entries}}};
    for (int i = 0; i < lanes; ++i) dropped[static_cast<std::size_t>(i)] = 7 * i;
    for (int i = 0; i <= lanes; ++i) each_one.push_back(i);
  }
  [[nodiscard]] kv::keep_set keep() { return model.keep(); }
  /// One entry of each lane goes.
  [[nodiscard]] kv::keep_set one_dropped() {
    kv::keep_set made = model.keep();
    made.lists = kv::side::dropped;
    made.indices = dropped.data();
    made.indptr = each_one.data();
    made.capacity = lanes;
    return made;
  }
  [[nodiscard]] bench::floors::column counts(touching how) const { return {how, model.count.data(), 4 * lanes}; }

  kv::host_executor exec;
  bench::listed_model model;
  kv::cache cache;
  std::vector<float> column;
  std::vector<int> dropped;
  std::vector<std::int64_t> each_one;
  std::array<kv::recorded_column, 1> about;
  kv::apply_stats stats;
};

/// `restore`: puts back what the verb changes; `right`: whether the verb did what it is for.
template <class Restore, class Verb, class Right>
void compare(benchmark::State& state, counted& on, Restore const& restore, Verb const& verb, Right const& right,
             std::initializer_list<bench::floors::column> columns) {
  auto const taken = bench::in_turn_after(state, restore, verb, [&] { bench::floors::touch_pass(on.exec, columns); });
  restore();
  verb();
  if (!right()) return state.SkipWithError("wrong result");
  bench::report_share(state, taken, 0, 1);
}

void append_entries(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  compare(
      state, on, [&] { std::fill_n(on.model.count.data(), lanes, entries - 1); },
      [&] {
        kv::ops::append_entries(on.exec, on.cache.lanes, on.about,
                                kv::append_request{.tokens = 1, .position = entries});
      },
      [&] { return on.model.count.back() == entries; }, {on.counts(touching::both), on.counts(touching::write)});
}
void truncate_entries(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  compare(
      state, on, [&] { on.model.reset(); }, [&] { kv::ops::truncate_entries(on.exec, on.cache.lanes, 0, entries - 3); },
      [&] { return on.model.count.back() == entries - 3; }, {on.counts(touching::both)});
}
void commit_entries(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  int drafts = 0;
  on.cache.lanes.in_flight = &drafts;
  compare(
      state, on, [&] { drafts = 4; }, [&] { kv::ops::commit_entries(on.exec, on.cache.lanes, 0, 3); },
      [&] { return drafts == 1; }, {on.counts(touching::read)});
}
void refuse_stale(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  compare(
      state, on, [] {}, [&] { kv::ops::refuse_stale(on.exec, on.cache.lanes, on.keep()); }, [] { return true; },
      {on.counts(touching::read), on.counts(touching::read)});
}
void raise_epochs(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  auto const layers = static_cast<std::size_t>(on.cache.lanes.layers());
  std::vector<std::uint64_t> epochs(layers);
  compare(
      state, on, [&] { epochs.assign(layers, 0); },
      [&] {
        kv::ops::raise_epochs(on.exec, on.cache.lanes, kv::by_lane<std::uint64_t>{epochs.data(), 0, 1, 0}, nullptr);
      },
      [&] { return epochs.back() == 1; }, {{touching::both, epochs.data(), layers * sizeof(std::uint64_t)}});
}
void check_units(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  on.exec.reserve(kv::implementation<kv::ops::check_units_t, kv::host>::scratch(on.cache));
  compare(
      state, on, [] {}, [&] { kv::ops::check_units(on.exec, on.keep(), on.cache, true); }, [] { return true; },
      {{touching::read, on.model.list.data(), on.model.list.size() * sizeof(int)}});
}
void refuse_ragged(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  compare(
      state, on, [] {}, [&] { kv::ops::refuse_ragged(on.exec, on.cache.lanes, on.keep()); }, [] { return true; },
      {on.counts(touching::read)});
}
void set_counts(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  compare(
      state, on, [&] { std::fill_n(on.model.count.data(), lanes, entries); },
      [&] { kv::ops::set_counts(on.exec, on.cache.lanes, on.keep()); },
      [&] { return on.model.count.back() == entries / 4; }, {on.counts(touching::both)});
}
void free_tails(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  std::int64_t freed = 0;
  on.exec.reserve(kv::implementation<kv::ops::free_tails_t, kv::host>::scratch(on.cache));
  compare(
      state, on, [&] { freed = 0; }, [&] { kv::ops::free_tails(on.exec, on.keep(), on.cache, &freed); },
      [&] { return freed == std::int64_t{lanes} * entries / 4 * 3; }, {on.counts(touching::read)});
}
void clear_stats(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  compare(
      state, on, [&] { on.stats.logical_kept = 1; }, [&] { kv::ops::clear_stats(on.exec, &on.stats); },
      [&] { return on.stats.logical_kept == 0; }, {on.counts(touching::read)});
}
void add_counters(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  std::array<std::int64_t, 8> from{1, 2, 3, 4, 5, 6, 7, 8}, to{};
  compare(
      state, on, [&] { to = {}; }, [&] { kv::ops::add_counters(on.exec, from.data(), 8, to.data(), false); },
      [&] { return to == from; }, {on.counts(touching::read)});
}
void count_kept(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  compare(
      state, on, [&] { on.stats = {}; },
      [&] { kv::ops::count_kept(on.exec, on.keep(), on.cache.lanes, true, &on.stats); },
      [&] { return on.stats.logical_kept == std::int64_t{lanes} * entries / 4; },
      {on.counts(touching::read), on.counts(touching::read)});
}
void count_dropped(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  compare(
      state, on, [&] { on.stats = {}; },
      [&] { kv::ops::count_dropped(on.exec, on.one_dropped(), on.cache.lanes, &on.stats); },
      [&] { return on.stats.physical_freed == lanes; }, {on.counts(touching::read), on.counts(touching::read)});
}
/// Of every lane one entry goes, near the front: what is behind it moves up, in the list, the positions and a column.
void drop_listed(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  std::size_t const all = 4 * on.model.list.size();
  compare(
      state, on, [&] { on.model.reset(); },
      [&] { kv::ops::drop_listed(on.exec, on.one_dropped(), on.cache, on.model.rows_of(on.model.list), on.about); },
      [&] { return on.model.count.back() == entries - 1 && on.model.position[entries - 2] == entries - 1; },
      {{touching::both, on.model.list.data(), all},
       {touching::both, on.model.position.data(), all},
       {touching::both, on.column.data(), all}});
}
/// Positions and a column of the kept quarter move to the front; rows stay.
void permute_columns(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  compare(
      state, on, [&] { on.model.reset(); }, [&] { kv::ops::permute_columns(on.exec, on.keep(), on.cache, on.about); },
      [&] { return on.model.position[1] == on.model.ordinal[1]; },
      {{touching::read, on.model.ordinal.data(), 4 * on.model.ordinal.size()},
       {touching::both, on.model.position.data(), 4 * on.model.position.size()},
       {touching::both, on.column.data(), 4 * on.column.size()}});
}
/// A forward's row positions of each sequence: those that count, of 4096.
void count_rows(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  constexpr int rows = 4096, sequences = 64;
  std::vector<int> position(rows * sequences), index(position.size()), number(sequences);
  for (std::size_t i = 0; i < position.size(); ++i) position[i] = i % 3 == 0 ? -1 : static_cast<int>(i % rows);
  kv::lanes batch = on.cache.lanes;
  batch.sequences = sequences;
  kv::row_positions const from{.rows = rows, .position = {position.data(), rows, 0, 0}};
  kv::counted_rows const to{{index.data(), rows, 0, 0}, {number.data(), 1, 0, 0}};
  compare(
      state, on, [] {}, [&] { kv::ops::count_rows(on.exec, batch, from, to); },
      [&] { return number[0] == rows - (rows + 2) / 3; },
      {{touching::read, position.data(), 4 * position.size()}, {touching::write, index.data(), 8 * index.size() / 3}});
}
void count_pages(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  std::vector<int> count(lanes), position(entries);
  kv::lanes pages = on.cache.lanes;
  pages.capacity = entries / 16;
  pages.count = {count.data(), 0, 8, 1};
  pages.position = {position.data(), 0, 0, 0};
  compare(
      state, on, [] {}, [&] { kv::ops::count_pages(on.exec, on.cache.lanes, 16, pages); },
      [&] { return count.back() == entries / 16; },
      {on.counts(touching::read),
       {touching::write, count.data(), 4 * lanes},
       {touching::write, position.data(), 4 * entries / 16}});
}
/// A part of the tokens that each sequence has had: the newest position of every lane.
void map_lanes(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  std::vector<int> shares(lanes);
  kv::by_lane<int> const out{shares.data(), 0, 8, 1};
  compare(
      state, on, [] {}, [&] { kv::ops::map_lanes(on.exec, on.cache.lanes, kv::seen{.drop = 0.5}, out); },
      [&] { return shares.back() == entries / 2; },
      {on.counts(touching::read), {touching::write, shares.data(), 4 * lanes}});
}
void forget_bounds(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  std::vector<int> known(lanes);
  compare(
      state, on, [&] { std::fill(known.begin(), known.end(), entries); },
      [&] { kv::ops::forget_bounds(on.exec, on.cache.lanes, kv::by_lane<int>{known.data(), 0, 8, 1}, 0, entries / 2); },
      [&] { return known.back() == entries / 2; }, {{touching::both, known.data(), 4 * lanes}});
}
void all_reduce(benchmark::State& state) {
  counted on(static_cast<int>(state.range(0)));
  compare(
      state, on, [] {}, [&] { kv::ops::all_reduce(on.exec, on.column.data(), on.column.size()); }, [] { return true; },
      {on.counts(touching::read)});
}
/// The rows of one cache to another.
void copy_rows(benchmark::State& state) {
  constexpr kv::codec bf16 = kv::codec::bf16;
  if (!bench::has_memory(state, 2 * bench::model_cache::bytes(bench::whole_model, entries, bf16))) return;
  bench::model_cache first(bench::whole_model, entries, bf16), second(bench::whole_model, entries, bf16);
  kv::cache const from = first.view(), to = second.view();
  counted on(static_cast<int>(state.range(0)));
  std::size_t const bytes = first.plane_bytes();
  compare(
      state, on, [] {}, [&] { kv::ops::copy_rows(on.exec, from, to); },
      [&] { return std::memcmp(from.v.base, to.v.base, bytes) == 0; },
      {{touching::read, from.k.base, bytes},
       {touching::write, to.k.base, bytes},
       {touching::read, from.v.base, bytes},
       {touching::write, to.v.base, bytes}});
}

#define KVPOLICY_ROW(name) \
  BENCHMARK(name)->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime()->Iterations(15)->Unit(benchmark::kMicrosecond)
KVPOLICY_ROW(append_entries);
KVPOLICY_ROW(truncate_entries);
KVPOLICY_ROW(commit_entries);
KVPOLICY_ROW(refuse_stale);
KVPOLICY_ROW(raise_epochs);
KVPOLICY_ROW(check_units);
KVPOLICY_ROW(refuse_ragged);
KVPOLICY_ROW(set_counts);
KVPOLICY_ROW(free_tails);
KVPOLICY_ROW(clear_stats);
KVPOLICY_ROW(add_counters);
KVPOLICY_ROW(count_kept);
KVPOLICY_ROW(count_dropped);
KVPOLICY_ROW(drop_listed);
KVPOLICY_ROW(permute_columns);
KVPOLICY_ROW(count_rows);
KVPOLICY_ROW(count_pages);
KVPOLICY_ROW(map_lanes);
KVPOLICY_ROW(forget_bounds);
KVPOLICY_ROW(all_reduce);
KVPOLICY_ROW(copy_rows);

}  // namespace
