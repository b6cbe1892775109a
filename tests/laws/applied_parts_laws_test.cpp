// SPDX-License-Identifier: Apache-2.0
// An applier that carries out the decision about a part of a batch does in its lanes what it does for the whole, and
// changes no row, list, map, list of freed slots or number of others.

#include "laws/worlds.hpp"
#include "layout/slot_cache.hpp"

namespace applied_parts_test {

using namespace kvpolicy_test;

constexpr kv::eviction<kv::knorm> policy{.budget = {6}};

/// Four requests of 12 tokens and more, whose lanes have a list, a map, counts and positions of their own.
struct engine {
  explicit engine(int page)
      : cache({.model = {2, 2, 2, 4}, .sequences = 4, .bound = 20, .page = page, .by_lane = true, .seed = 5}) {
    for (int s = 0; s < 4; ++s) {
      for (int p = 0; p < 12 + s; ++p) {
        cache.write_token(s, p, 100 * s + p);
        kv::append(exec, all, state, {.sequence = s, .tokens = 1, .position = p});
      }
    }
  }

  /// Everything of a lane that an applier may write.
  [[nodiscard]] byte_image lane(kv::lane one) {
    byte_image made;
    int const held = cache.held(one);
    add_number(made, held);
    add(made, cache.row(cache.list, one, cache.places));
    add(made, cache.row(cache.map, one, cache.map_row));
    add(made, cache.row(cache.position, one, held));
    add(made, cache.row(cache.freed, one, cache.options.bound));
    add(made, cache.row(cache.freed_count, one, 1));
    add(made, cache.row(cache.released, one, cache.options.bound));
    add(made, cache.row(cache.released_count, one, 1));
    auto const first = shown.begin() + cache.row_of(one) * cache.units;
    made.insert(made.end(), first, first + cache.units);
    for (kv::place const& each : cache.entry_places(one)) {
      for (bool const key : {true, false}) add(made, cache.read(key, one, static_cast<int>(each.unit), each.token));
    }
    return made;
  }
  [[nodiscard]] std::vector<byte_image> lanes() {
    std::vector<byte_image> made;
    for (int i = 0; i < cache.lane_count(); ++i) made.push_back(lane(cache.lane_at(i)));
    return made;
  }

  /// Decides about a part and carries the decision out. `how(engine, list of)` makes the applier with its tables.
  template <class How>
  kv::apply_stats evict(view of, How const& how) {
    kv::apply_stats stats;
    kv::cache part = part_of(all, of);
    kv::decide(exec, policy, kv::signals{part.lanes, kv::keys_of(part)}, state, plan);
    auto const rows = [of](auto table) { return of == view::list ? kv::only(table, the_list) : table; };
    kv::apply(exec, how(*this, rows), plan, part, state, &stats);
    return stats;
  }

  kv::by_lane<std::byte> rows_of_bytes() {
    std::int64_t const head = cache.units, layer = head * cache.options.model.kv_heads;
    return {shown.data(), layer * cache.options.model.layers, layer, head};
  }
  /// What attention may read: a byte for each unit, of every lane.
  kv::mask_rows mask() { return {rows_of_bytes(), kv::mask_form::boolean, cache.units}; }

  slot_cache cache;
  std::vector<std::byte> shown = std::vector<std::byte>(slot_cache::at(cache.rows * cache.units), std::byte{1});
  kv::host_executor exec{1};
  kv::cache all = cache.view();
  kv::state<kv::host_executor> state = kv::make_state(exec, policy, all);
  kv::plan<kv::host_executor> plan = kv::make_plan(exec, policy, all, kv::compact{});
};

template <class How>
void law(std::string const& name, int page, bool takes_layers, How const& how) {
  for (view const part : {view::sequences, view::layers, view::list}) {
    INFO(name, ", ", std::string(text_of(part)));
    engine whole(page), some(page);
    std::vector<byte_image> const before = some.lanes();
    whole.evict(view::whole, how);
    kv::apply_stats stats;
    std::string const told = error_of([&] { stats = some.evict(part, how); });
    if (!told.empty()) {
      CHECK_MESSAGE((part == view::layers && !takes_layers), told);
      CHECK(some.lanes() == before);
      continue;
    }
    std::vector<byte_image> const after = some.lanes(), expected = whole.lanes();
    std::int64_t kept = 0;
    for (int i = 0; i < some.cache.lane_count(); ++i) {
      kv::lane const one = some.cache.lane_at(i);
      auto const at = as_size(i);
      CHECK(after[at] == (is_in(part, one) ? expected[at] : before[at]));
      kept += is_in(part, one) ? 6 : 0;
    }
    CHECK(stats.logical_kept == kept);
  }
}

kv::unit_list rows_of(kv::unit_list of, auto const& rows) { return {rows(of.unit), rows(of.count)}; }

TEST_SUITE("laws/parts") {
  TEST_CASE("every applier carries out the decision about a part in the lanes of the part alone") {
    law("compact", 1, true, [](engine&, auto const&) { return kv::compact{}; });
    law("compact, pages", 4, true, [](engine&, auto const&) { return kv::compact{}; });
    law("compact_rerotated", 4, false, [](engine&, auto const&) { return kv::compact_rerotated{}; });
    law("overwrite", 1, true, [](engine& of, auto const& rows) { return kv::overwrite{rows(of.cache.list_table())}; });
    law("mask", 1, true, [](engine& of, auto const& rows) {
      kv::mask_rows shown = of.mask();
      shown.rows = rows(shown.rows);
      return kv::mask{.list = rows(of.cache.list_table()), .rows = shown};
    });
    law("list_rewrite", 1, true, [](engine& of, auto const& rows) {
      return kv::list_rewrite<>{.list = rows(of.cache.list_table()),
                                .freed = rows_of(of.cache.freed_list(), rows),
                                .released = rows_of(of.cache.released_list(), rows)};
    });
    law("dead_slot", 1, true, [](engine& of, auto const& rows) {
      kv::dead_slot<> how = of.cache.redirecting();
      how.list = rows(how.list);
      how.map = rows(how.map);
      how.protected_prefix = rows(how.protected_prefix);
      how.locked_prefix = rows(how.locked_prefix);
      how.freed = rows_of(how.freed, rows);
      how.released = rows_of(how.released, rows);
      return how;
    });
    law("drop_blocks", 4, true, [](engine& of, auto const& rows) {
      return kv::drop_blocks<>{.table = rows(of.cache.list_table()), .freed = rows_of(of.cache.freed_list(), rows)};
    });
  }
}

}  // namespace applied_parts_test
