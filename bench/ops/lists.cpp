// SPDX-License-Identifier: Apache-2.0
// The verbs that edit lists of slots, over a whole model's lanes, each with a list of its own: a quarter of the entries
// stays. Against the loop that one would write without its guarantees, or a read of the tables.
#include <kvpolicy/ops/lists.hpp>

#include "listed_model.hpp"
#include "measure.hpp"

namespace {

namespace kv = kvpolicy;

constexpr int lanes = bench::listed_model::lanes;

struct edited {
  explicit edited(int entries) : model(entries, entries / 4), freed(model.list.size()), freed_count(lanes) {
    first = map = model.list;
  }
  [[nodiscard]] kv::list_edit<> edit(bool with_map) {
    kv::list_edit<> made{.list = model.rows_of(model.list),
                         .freed = {model.rows_of(freed), {freed_count.data(), 0, 8, 1}}};
    if (with_map) made.map = model.rows_of(map);
    if (with_map) made.dead = 0;
    return made;
  }
  void put_back() {
    model.list = first;
    map = first;
  }
  bench::listed_model model;
  std::vector<int> first, map, freed, freed_count;
};

bool fits(benchmark::State& state) {
  auto const entries = static_cast<int>(state.range(0));
  return bench::has_memory(state, bench::listed_model::bytes(entries) + 3 * 4.0 * lanes * entries);
}

/// What became of a lane's list, map and freed slots, told from the list as it was.
bool is_rewritten(edited& on, bool with_map) {
  for (int i : {0, 100, lanes - 1}) {
    auto const kept = on.model.keep().listed(i);
    int const* const was = on.model.row(on.first, i);
    std::vector<int> list, freed, map(was, was + on.model.bound);
    for (int const e : kept) list.push_back(was[e]);
    for (int e = 0; e < on.model.bound; ++e) {
      if (std::binary_search(kept.begin(), kept.end(), e)) continue;
      freed.push_back(was[e]);
      if (with_map) map[static_cast<std::size_t>(e)] = 0;
    }
    list.insert(list.end(), freed.begin(), freed.end());
    if (!std::equal(list.begin(), list.end(), on.model.row(on.model.list, i))) return false;
    if (!std::equal(freed.begin(), freed.end(), on.model.row(on.freed, i))) return false;
    if (on.freed_count[static_cast<std::size_t>(i)] != std::ssize(freed)) return false;
    if (!std::equal(map.begin(), map.end(), on.model.row(on.map, i))) return false;
  }
  return true;
}

/// The same by a plain loop, which trusts that no slot is listed twice.
void plain_rewrite(edited& on, kv::keep_set const& keep, int i, bool with_map) {
  auto const kept = keep.listed(i);
  int* const list = on.model.row(on.model.list, i);
  int* const freed = on.model.row(on.freed, i);
  int* const map = on.model.row(on.map, i);
  std::size_t to = 0;
  int gone = 0;
  for (int e = 0; e < on.model.bound; ++e) {
    if (to < kept.size() && kept[to] == e) {
      list[to++] = list[e];
      continue;
    }
    if (with_map) map[e] = 0;
    freed[gone++] = list[e];
  }
  std::copy_n(freed, gone, list + to);
  on.freed_count[static_cast<std::size_t>(i)] = gone;
}

void rewrite_list(benchmark::State& state) {
  if (!fits(state)) return;
  bool const with_map = state.range(1) != 0;
  int const threads = static_cast<int>(state.range(2));
  edited on(static_cast<int>(state.range(0)));
  kv::host_executor exec(threads);
  kv::cache const cache = on.model.view();
  kv::keep_set const keep = on.model.keep();
  exec.reserve(kv::implementation<kv::ops::rewrite_list_t, kv::host>::scratch(cache));
  std::int64_t freed = 0;
  auto const rewrite = [&] { kv::ops::rewrite_list(exec, keep, cache, on.edit(with_map), &freed); };
  auto const plain = [&] { exec.for_each(lanes, [&](int i, int) { plain_rewrite(on, keep, i, with_map); }); };
  rewrite();
  if (!is_rewritten(on, with_map) || freed != lanes * std::int64_t{3} * (on.model.bound / 4))
    return state.SkipWithError("wrong result");
  on.put_back();
  plain();
  if (!is_rewritten(on, with_map)) return state.SkipWithError("wrong peer");
  auto const touch = [&] {
    using bench::floors::touching;
    std::size_t const all = 4 * on.model.list.size();
    std::size_t const maps = with_map ? all : 0;
    bench::floors::touch_pass(exec, {{touching::both, on.model.list.data(), all},
                                     {touching::read, on.model.ordinal.data(), 4 * on.model.ordinal.size()},
                                     {touching::write, on.freed.data(), all / 4 * 3},
                                     {touching::both, on.map.data(), maps},
                                     {touching::read, on.model.position.data(), maps}});
  };
  bench::rounds const taken = bench::in_turn_after(state, [&] { on.put_back(); }, rewrite, plain, touch);
  bench::report_share(state, taken, 0, 2);
  state.counters["over_loop"] = taken.ratio(0, 1);
  double const each = with_map ? 3 : 1;  // the list; the map and the positions
  bench::report_rate(state, 4.0 * each * lanes * on.model.bound, taken.seconds(0), threads);
}
BENCHMARK(rewrite_list)
    ->ArgNames({"entries", "map", "threads"})
    ->ArgsProduct({{4096, 32768}, {0, 1}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(20);

/// Whether a check accepts what is sound and refuses one slot out of place in the last lane.
bool checks(edited& on, kv::list_edit<> const& edit, kv::host_executor& exec) {
  kv::cache const cache = on.model.view();
  kv::ops::check_list(exec, on.model.keep(), cache, edit);
  int& last = on.model.list.back();
  int const was = std::exchange(last, 0);
  bool refused = false;
  try {
    kv::ops::check_list(exec, on.model.keep(), cache, edit);
  } catch (kv::invalid_argument const&) {
    refused = true;
  }
  last = was;
  return refused;
}

void check_list(benchmark::State& state) {
  if (!fits(state)) return;
  edited on(static_cast<int>(state.range(0)));
  kv::host_executor exec(static_cast<int>(state.range(2)));
  kv::cache const cache = on.model.view();
  kv::keep_set const keep = on.model.keep();
  exec.reserve(kv::implementation<kv::ops::rewrite_list_t, kv::host>::scratch(cache));
  kv::list_edit<> edit = on.edit(true);
  edit.distinct = state.range(1) != 0;
  if (!checks(on, edit, exec)) return state.SkipWithError("wrong result");
  auto const check = [&] { kv::ops::check_list(exec, keep, cache, edit); };
  auto const read = [&] {
    for (std::vector<int> const* table : {&on.model.list, &on.model.position, &on.map})
      bench::floors::read_pass(exec, reinterpret_cast<std::byte const*>(table->data()), 4 * table->size());
  };
  auto const touch = [&] {
    using bench::floors::touching;
    bench::floors::touch_pass(exec, {{touching::read, on.model.list.data(), 4 * on.model.list.size()},
                                     {touching::read, on.model.position.data(), 4 * on.model.list.size()},
                                     {touching::read, on.map.data(), 4 * on.model.list.size()},
                                     {touching::read, on.model.ordinal.data(), 4 * on.model.ordinal.size()}});
  };
  bench::rounds const taken = bench::in_turn(state, check, read, touch);
  state.counters["over_read"] = taken.ratio(0, 1);
  bench::report_share(state, taken, 0, 2);
  bench::report_rate(state, 12.0 * lanes * on.model.bound, taken.seconds(0), exec.threads());
}
BENCHMARK(check_list)
    ->ArgNames({"entries", "distinct", "threads"})
    ->ArgsProduct({{4096, 32768}, {0, 1}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(20);

void relist(benchmark::State& state) {
  if (!fits(state)) return;
  edited on(static_cast<int>(state.range(0)));
  kv::host_executor exec(static_cast<int>(state.range(1)));
  kv::cache const cache = on.model.view();
  for (int i = 0; i < lanes; ++i) {  // live are the kept entries, at the positions that they had
    auto const kept = on.model.keep().listed(i);
    std::copy(kept.begin(), kept.end(), on.model.row(on.model.position, i));
    on.model.count[static_cast<std::size_t>(i)] = static_cast<int>(kept.size());
  }
  auto const again = [&] {
    kv::ops::relist(exec, cache, on.model.rows_of(on.model.list), on.model.rows_of(on.map), kv::by_lane<int const>{}, 0,
                    0, on.model.bound);
  };
  again();
  for (int i : {0, 100, lanes - 1}) {
    auto const kept = on.model.keep().listed(i);
    int const* const was = on.model.row(on.first, i);
    std::size_t live = 0;
    for (int p = 0; p < on.model.bound; ++p) {
      bool const stays = std::binary_search(kept.begin(), kept.end(), p);
      if (on.model.row(on.map, i)[p] != (stays ? was[p] : 0)) return state.SkipWithError("wrong result");
      if (stays && on.model.row(on.model.list, i)[live++] != was[p]) return state.SkipWithError("wrong result");
    }
  }
  auto const touch = [&] {
    using bench::floors::touching;
    std::size_t const all = 4 * on.model.list.size();
    bench::floors::touch_pass(exec, {{touching::both, on.map.data(), all},
                                     {touching::read, on.model.position.data(), all / 4},
                                     {touching::write, on.freed.data(), all / 4}});  // in the list's place
  };
  bench::rounds const taken = bench::in_turn_after(state, [&] { on.map = on.first; }, again, touch);
  bench::report_share(state, taken, 0, 1);
  bench::report_rate(state, 4.0 * lanes * (on.model.bound + 2 * (on.model.bound / 4)), taken.seconds(0),
                     exec.threads());
}
BENCHMARK(relist)
    ->ArgNames({"entries", "threads"})
    ->ArgsProduct({{4096, 32768}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond)
    ->Iterations(20);

}  // namespace
