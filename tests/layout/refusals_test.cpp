// SPDX-License-Identifier: Apache-2.0
// What the appliers of lists, maps, masks and blocks refuse: each by its text, and with nothing changed.

#include "layout/slot_cache.hpp"
#include "support/beside.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

using together = kv::eviction<kv::reduce_lanes<kv::random_scores>>;
using apart = kv::eviction<kv::random_scores>;

/// Two sequences, two layers, two heads, six tokens each, a decision to keep three.
template <class Policy>
struct bench {
  explicit bench(slot_options const& shape, Policy const& decides = {}, int tokens = 6)
      : cache(shape),
        policy(decides),
        view(cache.view()),
        plan(kv::make_plan(exec, policy, view)),
        columns(kv::make_state(exec, policy, view)),
        mask_memory(as_size(4 * cache.units * cache.rows), std::byte{0x11}) {
    keep_beside(columns, kv::record_attention_mass{});
    for (int p = 0; p < tokens; ++p) {
      for (int s = 0; s < shape.sequences; ++s) {
        cache.write_token(s, p, p);
        kv::append(exec, view, columns, {s, 1, p});
      }
    }
    policy.budget.tokens = 3;
    decide();
  }
  void decide() { kv::decide(exec, policy, kv::signals{view.lanes}, columns, plan); }

  kv::mask masking(std::int64_t units) {
    std::int64_t const row = 4 * cache.units;
    auto const like = cache.table(cache.count, 1);
    return {cache.list_table(),
            {{mask_memory.data(), like.sequence * row, like.layer * row, like.head * row},
             kv::mask_form::additive_f32,
             units}};
  }

  struct snapshot {
    slot_cache::snapshot cache;
    std::vector<std::byte> mask, columns;
    kv::apply_stats told;
    friend bool operator==(snapshot const&, snapshot const&) = default;
  };
  snapshot save() {
    kv::by_lane<std::byte> const mass = columns.columns()[0].rows;
    return {cache.save(), mask_memory, {mass.data, mass.data + mass.sequence * cache.options.sequences}, told};
  }

  /// What a call is refused with, which changes nothing.
  template <class Call>
  std::string refusal(Call const& call) {
    return refusal_without_change(call, [&] { return save(); });
  }
  template <class Applier>
  void refuses(std::string const& text, Applier const& how) {
    CHECK(refusal([&] { kv::apply(exec, how, plan, view, columns, &told); }) == text);
  }

  slot_cache cache;
  Policy policy;
  kv::host_executor exec;
  kv::cache view;
  kv::plan<kv::host_executor> plan;
  kv::state<kv::host_executor> columns;
  std::vector<std::byte> mask_memory;
  kv::apply_stats told{-1, -2, -3};
};

slot_options shape_of(bool by_lane, int page = 1) {
  return {.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4},
          .sequences = 2,
          .bound = 8,
          .spare = 4,
          .page = page,
          .by_lane = by_lane};
}

/// Every applier of lists, as it should be called.
template <class Bench, class Visit>
void for_every_list_applier(Bench& with, Visit const& visit) {
  visit(with.cache.redirecting());
  visit(kv::list_rewrite{.list = with.cache.list_table(), .freed = with.cache.freed_list()});
  visit(with.masking(with.cache.units));
  visit(kv::overwrite{with.cache.list_table()});
}

}  // namespace

TEST_SUITE("layout") {
  TEST_CASE("a slot outside the pool is refused by every applier of lists") {
    bench<together> with(shape_of(false));
    int const slot = with.cache.list[2];
    for (int const wrong : {with.cache.units, -1, 1 << 30}) {
      with.cache.list[2] = wrong;
      for_every_list_applier(with, [&](auto const& how) {
        with.refuses("apply: list = slot " + std::to_string(wrong) +
                         " at position 2 of lane (0, 0, 0), but the pool has " + std::to_string(with.cache.units) +
                         " slots",
                     how);
      });
    }
    with.cache.list[2] = slot;
    kv::apply(with.exec, with.cache.redirecting(), with.plan, with.view, with.columns);
  }

  TEST_CASE("two owners of one slot are refused unless `shared` says so") {
    bench<together> with(shape_of(false));
    int const slot = with.cache.list[0];
    with.cache.list[as_size(with.cache.places)] = slot;
    with.cache.map[as_size(with.cache.map_row)] = slot;
    for_every_list_applier(with, [&](auto const& how) {
      with.refuses(
          "apply: list = slot " + std::to_string(slot) +
              " at position 0 of lane (1, 0, 0), but another sequence has that slot, and `shared` does not say so",
          how);
    });
    auto const shared = [slot](int each) { return each == slot; };
    kv::list_rewrite<decltype(shared)> const said{
        .list = with.cache.list_table(), .freed = with.cache.freed_list(), .shared = shared};
    kv::apply(with.exec, said, with.plan, with.view, with.columns);
  }

  TEST_CASE("one slot twice in a lane's own list is refused where rows would be overwritten") {
    bench<together> with(shape_of(false));
    with.cache.list[1] = with.cache.list[0];
    auto const before = with.save();
    CHECK_THROWS_AS(kv::apply(with.exec, kv::overwrite{with.cache.list_table()}, with.plan, with.view, with.columns),
                    kv::invalid_argument);
    CHECK(with.save() == before);
  }

  TEST_CASE("lanes that decide apart need lists, counts and positions of their own") {
    std::string const rule =
        " = shared by layers, but these layers decide apart: reduce_lanes makes them decide together";
    bench<apart> all_shared(shape_of(false));
    for_every_list_applier(all_shared, [&](auto const& how) { all_shared.refuses("apply: lanes.count" + rule, how); });

    bench<apart> list_shared(shape_of(true));
    auto const own = list_shared.cache.list_table();
    kv::by_lane<int> const shared{own.data, own.sequence, 0, 0};
    list_shared.view.where.table = {shared.data, shared.sequence, 0, 0};
    list_shared.refuses("apply: list" + rule, kv::list_rewrite{.list = shared});
    list_shared.refuses("apply: list" + rule, kv::overwrite{shared});
    auto redirecting = list_shared.cache.redirecting();
    redirecting.list = shared;
    list_shared.refuses("apply: list" + rule, redirecting);

    bench<apart> heads_shared(shape_of(true));
    auto const rows = heads_shared.cache.list_table();
    kv::by_lane<int> const by_layer{rows.data, rows.sequence, rows.layer, 0};
    heads_shared.view.where.table = {by_layer.data, by_layer.sequence, by_layer.layer, 0};
    heads_shared.refuses(
        "apply: list = shared by heads, but these heads decide apart: reduce_lanes makes them decide together",
        kv::list_rewrite{.list = by_layer});

    bench<apart> others(shape_of(true));
    auto map_shared = others.cache.redirecting();
    map_shared.map.layer = map_shared.map.head = 0;
    others.refuses("apply: map" + rule, map_shared);
    auto freed_shared = others.cache.redirecting();
    freed_shared.freed.unit.layer = 0;
    others.refuses("apply: freed" + rule, freed_shared);
    auto mask_shared = others.masking(others.cache.units);
    mask_shared.rows.rows.layer = mask_shared.rows.rows.head = 0;
    others.refuses("apply: mask.rows" + rule, mask_shared);
  }

  TEST_CASE("a list that is not the table of the cache's locator, or half a list of units, is refused") {
    bench<together> with(shape_of(false));
    std::vector<int> elsewhere = with.cache.list;
    std::string const text =
        "apply: list = another table, but it is the table that the cache's locator reads, to be written";
    kv::by_lane<int> const other{elsewhere.data(), with.cache.places, 0, 0};
    auto redirecting = with.cache.redirecting();
    redirecting.list = other;
    with.refuses(text, redirecting);
    with.refuses(text, kv::list_rewrite{.list = other});
    with.refuses(text, kv::overwrite{other});
    auto masking = with.masking(with.cache.units);
    masking.list = other;
    with.refuses(text, masking);
    with.refuses("apply: list = null, but it is the table that the cache's locator reads, to be written",
                 kv::list_rewrite{});

    std::string const half =
        "apply: freed = half of a list, but a list of units has memory for the units and for their number";
    with.refuses(half, kv::list_rewrite{.list = with.cache.list_table(), .freed = {with.cache.freed_list().unit, {}}});
    auto released = with.cache.redirecting();
    released.released.unit = {};
    with.refuses(half, released);
  }

  TEST_CASE("a cache without a list of slots is refused by appliers of lists") {
    bench<together> paged(shape_of(false, 4));
    for_every_list_applier(paged, [&](auto const& how) {
      paged.refuses("apply: where = no list of slots, but this applier edits a list with one token a unit", how);
    });
  }

  TEST_CASE("a plan that was made for other counts is refused by every applier") {
    bench<together> with(shape_of(false));
    for (int s = 0; s < 2; ++s) {
      with.cache.write_token(s, 6, 6);
      kv::append(with.exec, with.view, with.columns, {s, 1, 6});
    }
    std::string const text = "apply: plan = made for 6 entries of lane 0, but the cache holds 7 now: decide again";
    for_every_list_applier(with, [&](auto const& how) { with.refuses(text, how); });
    with.refuses(text, kv::compact_rerotated{});
    bench<together> paged(shape_of(false, 4));
    for (int s = 0; s < 2; ++s) {
      paged.cache.write_token(s, 6, 6);
      kv::append(paged.exec, paged.view, paged.columns, {s, 1, 6});
    }
    paged.refuses(text, kv::drop_blocks{.table = paged.cache.list_table()});
  }
}

TEST_SUITE("layout/dead_slot") {
  TEST_CASE("a map that names the dead slot inside the protected prefix is refused") {
    bench<kv::eviction<kv::reduce_lanes<kv::streaming_llm>>> with(shape_of(false),
                                                                  {.score = {.score_of = {.sinks = 2}}});
    with.cache.prefix = {0, 2};
    with.cache.map[as_size(with.cache.map_row + 1)] = with.cache.dead();
    with.refuses("apply: map = the dead slot at position 1, but the first 2 positions are protected",
                 with.cache.redirecting());
  }

  TEST_CASE("a keep set that drops a protected position is refused") {
    bench<kv::eviction<kv::reduce_lanes<kv::streaming_llm>>> with(shape_of(false),
                                                                  {.score = {.score_of = {.sinks = 1}}});
    with.cache.prefix = {1, 3};
    with.refuses("apply: plan.keep = position 1 dropped, but the first 3 positions are protected: force them, too",
                 with.cache.redirecting());
    with.cache.prefix = {1, 1};
    kv::apply(with.exec, with.cache.redirecting(), with.plan, with.view, with.columns);
  }

  TEST_CASE("a list that differs from the map, and a live entry at the dead slot, are refused") {
    bench<together> with(shape_of(false));
    int const slot = with.cache.list[2];
    int const other = with.cache.units - 2;
    with.cache.map[2] = other;
    with.refuses("apply: list = slot " + std::to_string(slot) + " at position 2 of lane (0, 0, 0), but the map says " +
                     std::to_string(other) + ": relist after the map was rewritten",
                 with.cache.redirecting());
    with.cache.list[2] = with.cache.map[2] = with.cache.dead();
    with.refuses("apply: list = slot " + std::to_string(with.cache.dead()) +
                     " at position 2 of lane (0, 0, 0), but a live entry is not at the dead slot",
                 with.cache.redirecting());
  }

  TEST_CASE("a dead slot outside the pool, and a redirect without a map, are refused") {
    bench<together> with(shape_of(false));
    auto how = with.cache.redirecting();
    for (int const wrong : {-1, with.cache.units}) {
      how.dead = wrong;
      with.refuses("apply: dead = " + std::to_string(wrong) + ", but the pool has " + std::to_string(with.cache.units) +
                       " slots",
                   how);
    }
    how = with.cache.redirecting();
    how.map = {};
    with.refuses("apply: map = null, but positions are redirected in the engine's map", how);
  }

  TEST_CASE("a tree that puts a live entry at the dead slot, or nowhere, is refused by relist") {
    bench<together> with(shape_of(false));
    auto const relist = [&](int sequence, int length) {
      return with.refusal([&] { kv::relist(with.exec, with.cache.redirecting(), with.view, sequence, length); });
    };
    with.cache.map[3] = with.cache.dead();
    std::string const rule = ", but a live entry is at a slot of the pool that is not the dead one";
    CHECK(relist(0, 6) ==
          "relist: map = " + std::to_string(with.cache.dead()) + " at position 3 of lane (0, 0, 0)" + rule);
    with.cache.map[3] = 999;
    CHECK(relist(0, 6) == "relist: map = 999 at position 3 of lane (0, 0, 0)" + rule);
    CHECK(relist(0, 2) == "relist: map = -1 at position 2 of lane (0, 0, 0)" + rule);
    CHECK(relist(2, 6) == "relist: sequence = 2, but the batch has 2 sequences");
  }
}

TEST_SUITE("layout/mask") {
  TEST_CASE("a mask that is smaller than the pool, or null, is refused") {
    bench<together> with(shape_of(false));
    int const units = with.cache.units;
    with.refuses(
        "apply: mask.units = " + std::to_string(units - 1) + ", but the pool has " + std::to_string(units) + " units",
        with.masking(units - 1));
    auto none = with.masking(units);
    none.rows.rows.data = nullptr;
    with.refuses("apply: mask.rows = null, but the mask is the engine's memory", none);
    CHECK_THROWS_AS(kv::show(with.exec, with.masking(units - 1), with.view), kv::invalid_argument);
    bench<apart> lanes(shape_of(true));
    auto shared = lanes.masking(lanes.cache.units);
    shared.rows.rows.layer = shared.rows.rows.head = 0;
    CHECK_THROWS_AS(kv::show(lanes.exec, shared, lanes.view), kv::invalid_argument);
    CHECK(lanes.mask_memory == std::vector<std::byte>(lanes.mask_memory.size(), std::byte{0x11}));
  }
}

TEST_SUITE("layout/drop_blocks") {
  TEST_CASE("a cache without a block table, another table and half a list are refused") {
    bench<together> slots(shape_of(false));
    slots.refuses("apply: where = no block table, but this applier drops blocks of a table",
                  kv::drop_blocks{.table = slots.cache.list_table()});
    bench<together> paged(shape_of(false, 4));
    paged.refuses("apply: table = null, but it is the table that the cache's locator reads, to be written",
                  kv::drop_blocks{});
    paged.refuses("apply: freed = half of a list, but a list of units has memory for the units and for their number",
                  kv::drop_blocks{.table = paged.cache.list_table(), .freed = {{}, paged.cache.freed_list().count}});
    bench<apart> lanes(shape_of(true, 4));
    auto const own = lanes.cache.list_table();
    kv::by_lane<int> const shared{own.data, own.sequence, 0, 0};
    lanes.view.where.table = {shared.data, shared.sequence, 0, 0};
    lanes.refuses(
        "apply: table = shared by layers, but these layers decide apart: reduce_lanes makes them decide together",
        kv::drop_blocks{.table = shared});
  }
}

TEST_SUITE("layout/compact_rerotated") {
  TEST_CASE("keys that the engine alone can read, ropes that do not fit, and some layers only are refused") {
    bench<together> with(shape_of(false));
    kv::cache const whole = with.view;
    with.view.k.element = kv::codec::opaque;
    with.refuses("rerotate: k = opaque rows, but only their engine can turn them", kv::compact_rerotated{});
    with.view = whole;
    with.refuses("rerotate: rope.dims = 3, but channels turn in pairs", kv::compact_rerotated{{.dims = 3}});
    with.refuses("rerotate: rope.dims = 6, but a key has 4 channels", kv::compact_rerotated{{.dims = 6}});
    with.refuses("rerotate: rope.theta = 0, but frequencies are powers of a positive number",
                 kv::compact_rerotated{{.theta = 0}});
    bench<apart> some(shape_of(true));
    kv::decide(some.exec, some.policy, kv::signals{some.view.lanes.layers_only(1, 2)}, some.columns, some.plan);
    some.refuses("apply: plan.lanes.layers = 1, but all 2 layers go on at one position", kv::compact_rerotated{});
  }

  TEST_CASE("lanes of one sequence that keep different numbers of entries are refused") {
    using pooled = kv::eviction<kv::random_scores, kv::nothing, kv::per_layer>;
    bench<pooled> with(shape_of(true), {.score = {.seed = 5}, .budget = {3, 0.0}});
    auto const kept = [&](int lane) { return with.plan.keep().listed(lane).size(); };
    for (with.policy.budget.tokens = 3; kept(0) == kept(1); ++with.policy.score.seed) with.decide();
    with.refuses("apply: plan.keep = " + std::to_string(kept(1)) +
                     ", but the next token has one position in all lanes, and another lane keeps " +
                     std::to_string(kept(0)),
                 kv::compact_rerotated{});
  }
}
