// SPDX-License-Identifier: Apache-2.0
// Pools and tables that lanes share: whose slot is whose, what a part of a list may be left out, and what is refused.

#include "layout/slot_cache.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// Two layers and two heads with a list each, three entries a lane; the lists of no two lanes name one slot. A decision
/// to keep the two of the lowest positions.
struct four_lanes {
  slot_cache cache;
  kv::host_executor exec;
  kv::eviction<kv::streaming_llm> policy{.score = {.sinks = 2}, .budget = {2}};
  kv::cache view = cache.view();
  kv::state<kv::host_executor> state = kv::make_state(exec, policy, view);
  kv::plan<kv::host_executor> plan = kv::make_plan(exec, policy, view);
  kv::apply_stats told;

  explicit four_lanes(int sequences = 1, int page = 1)
      : cache({.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4},
               .sequences = sequences,
               .bound = 4,
               .spare = 30,
               .page = page,
               .by_lane = true}) {
    if (page == 1) {
      for (int i = 0; i < cache.lane_count(); ++i) {
        for (int e = 0; e < 4; ++e) slot(i, e) = 4 * i + e;
      }
    }
    for (int s = 0; s < sequences; ++s) {
      for (int p = 0; p < 3; ++p) {
        cache.write_token(s, p, p);
        kv::append(exec, view, state, {s, 1, p});
      }
    }
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
  }
  int& slot(int lane, int e) { return cache.list[as_size(lane * cache.places + e)]; }

  /// Lets the map say where each lane's three entries are.
  void map_entries() {
    for (int i = 0; i < cache.lane_count(); ++i) {
      for (int e = 0; e < 3; ++e) map(i, e) = slot(i, e);
    }
  }
  int& map(int lane, int position) { return cache.map[as_size(lane * cache.map_row + position)]; }

  /// What a call is refused with, which has changed nothing then; empty if it is not refused.
  template <class Call>
  std::string refusal(Call const& call) {
    return refusal_without_change(call, [&] { return cache.save(); });
  }
  template <class Applier>
  std::string apply(Applier const& how) {
    return refusal([&] { kv::apply(exec, how, plan, view, state, &told); });
  }
  kv::list_rewrite<> rewriting() { return {.list = cache.list_table(), .freed = cache.freed_list()}; }
};

std::string taken(int slot, int position, std::string const& lane) {
  return "apply: list = slot " + std::to_string(slot) + " at position " + std::to_string(position) + " of lane " +
         lane + ", but another sequence has that slot, and `shared` does not say so";
}

/// What becomes of lists where lane `other` names a slot of lane 0, in a pool that these axes share.
std::string with_one_slot_in(int other, bool layers_share, bool heads_share) {
  four_lanes with;
  for (kv::plane* const rows : {&with.view.k, &with.view.v}) {
    if (layers_share) rows->layer_stride = 0;
    if (heads_share) rows->head_stride = 0;
  }
  with.slot(other, 1) = 0;
  return with.apply(with.rewriting());
}

}  // namespace

TEST_SUITE("layout/shared_pools") {
  TEST_CASE("a slot has one owner among the lanes that share a pool, and only among them") {
    std::vector<std::string> const lanes = {"(0, 0, 0)", "(0, 0, 1)", "(0, 1, 0)", "(0, 1, 1)"};
    for (int other : {1, 2, 3}) {
      INFO("lane ", other);
      std::string const refused = taken(0, 1, lanes[as_size(other)]);
      CHECK(with_one_slot_in(other, false, false).empty());
      CHECK(with_one_slot_in(other, true, false) == (other == 2 ? refused : ""));
      CHECK(with_one_slot_in(other, false, true) == (other == 1 ? refused : ""));
      CHECK(with_one_slot_in(other, true, true) == refused);
    }
  }

  TEST_CASE("what pointers tell apart is no shared pool") {
    four_lanes with;
    std::vector<std::byte*> bases(8, with.view.k.base);
    for (kv::plane* const rows : {&with.view.k, &with.view.v}) {
      rows->layer_stride = rows->head_stride = 0;
      rows->bases = {bases.data(), 2, 0, 1};
    }
    with.slot(1, 1) = with.slot(2, 1) = with.slot(3, 1) = 0;
    CHECK(with.apply(with.rewriting()).empty());
  }

  TEST_CASE("what a prefix tree locks is shared by those whose prefix it is, and by nobody else") {
    auto const two = [](int locked_of_the_other) {
      four_lanes with(2);
      with.slot(4, 0) = with.slot(0, 0);  // lane (1, 0, 0)
      auto how = with.cache.redirecting();
      for (std::size_t i = 0; i < 8; ++i) with.cache.locked[i] = i < 4 ? 2 : locked_of_the_other;
      with.map_entries();
      return with.apply(how);
    };
    CHECK(two(2).empty());
    CHECK(two(1).empty());
    CHECK(two(0) == taken(0, 0, "(1, 0, 0)"));
  }

  TEST_CASE("in a single sequence, what is wrong with a slot is told as in a batch, and what is right passes") {
    auto const with_slot = [](int slot, int mapped) {
      four_lanes with;
      auto how = with.cache.redirecting();
      with.map_entries();
      with.slot(3, 1) = slot;
      with.map(3, 1) = mapped;
      return with.apply(how);
    };
    int const units = four_lanes().cache.units;
    std::string const at = " at position 1 of lane (0, 1, 1), but ";
    CHECK(with_slot(20, 20).empty());
    CHECK(with_slot(0, 0).empty());
    for (int const wrong : {-1, units}) {
      CHECK(with_slot(wrong, wrong) ==
            "apply: list = slot " + std::to_string(wrong) + at + "the pool has " + std::to_string(units) + " slots");
    }
    CHECK(with_slot(units - 1, units - 1) ==
          "apply: list = slot " + std::to_string(units - 1) + at + "a live entry is not at the dead slot");
    CHECK(with_slot(20, 21) == "apply: list = slot 20" + at + "the map says 21: relist after the map was rewritten");
  }

  TEST_CASE("a protected prefix may be longer than the lane, not than what is kept of it") {
    four_lanes with;
    auto how = with.cache.redirecting();
    with.map_entries();
    for (int i = 0; i < 4; ++i) {
      for (int p = 3; p < 6; ++p) with.map(i, p) = with.cache.dead();
      with.cache.prefix[as_size(i)] = 3;
    }
    CHECK(with.apply(how) ==
          "apply: plan.keep = position 2 dropped, but the first 3 positions are protected: force them, too");
    with.policy.score.sinks = 3;
    with.policy.budget.tokens = 3;
    kv::decide(with.exec, with.policy, kv::signals{with.view.lanes}, with.state, with.plan);
    for (int& each : with.cache.prefix) each = 5;  // positions 3 and 4 are not there yet
    CHECK(with.apply(how).empty());
    CHECK(with.told == kv::apply_stats{12, 0, 12});
  }

  TEST_CASE("in a large pool, a slot that another lane keeps in its own layer or head is freed all the same") {
    slot_cache cache({.model = {.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 4},
                      .bound = 4,
                      .spare = 200,
                      .by_lane = true});
    cache.list = {5, 6, 7, 0, 6, 8, 9, 0};
    cache.count = {3, 3};
    cache.position = {0, 1, 2, -1, 0, 1, 2, -1};
    kv::host_executor exec(1);
    kv::cache view = cache.view();
    kv::eviction<kv::streaming_llm, kv::position_span> const last_two{
        .score = {.sinks = 0}, .protect = {1, 3}, .budget = {2}};
    auto [state, plan] = decided(exec, kv::signals{view.lanes}, last_two, view);
    kv::apply(exec, kv::list_rewrite{.list = cache.list_table(), .freed = cache.freed_list()}, plan, view, state);
    CHECK(cache.freed_count == std::vector<int>{1, 1});
    CHECK(cache.freed[0] == 5);
    CHECK(cache.freed[4] == 6);
  }

  TEST_CASE("a table of other strides is refused with the stride's name, and rows in place are no list") {
    std::pair<char const*, std::int64_t kv::by_lane<int>::*> const strides[] = {
        {"sequence", &kv::by_lane<int>::sequence},
        {"layer", &kv::by_lane<int>::layer},
        {"head", &kv::by_lane<int>::head}};
    for (auto const& [name, stride] : strides) {
      four_lanes with;
      auto how = with.rewriting();
      std::int64_t const right = how.list.*stride;
      how.list.*stride += 1;
      CHECK(with.apply(how) == std::string("apply: list.") + name + " = " + std::to_string(right + 1) +
                                   ", but the locator's table has stride " + std::to_string(right));
    }
    four_lanes with;
    with.view.where = kv::identity_map(4);
    CHECK(with.apply(with.rewriting()) ==
          "apply: where = no list of slots, but this applier edits a list with one token a unit");
    four_lanes pages;
    pages.view.where = kv::block_table(pages.view.where.table, 1, pages.cache.units);
    CHECK(pages.apply(pages.rewriting()).empty());
    CHECK(pages.told == kv::apply_stats{8, 4, 8});
  }

  TEST_CASE("appliers take the tokens that are kept, not pages and not what is dropped") {
    for (bool const pages : {false, true}) {
      std::string const text = pages ? "apply: plan.keep = pages, but appliers take tokens"
                                     : "apply: plan.keep = the entries that lowest_one drops, but this applier takes "
                                       "those that are kept: overwrite takes both";
      four_lanes with;
      kv::keep_set decided = with.plan.keep();
      if (pages) {
        decided.items = kv::item::page;
      } else {
        decided.lists = kv::side::dropped;
      }
      with.plan.publish(decided);
      CHECK(with.apply(with.rewriting()) == text);
      CHECK(with.apply(kv::compact{}) == text);
    }
    four_lanes fresh;
    fresh.plan = kv::make_plan(fresh.exec, fresh.policy, fresh.view);
    CHECK(fresh.apply(kv::compact{}) == "apply: plan = empty, but decide comes before apply");
  }

  TEST_CASE("tables may be shared by layers and heads that decide together, and by a single layer, head or sequence") {
    auto const shared = [](kv::shape const& model, int sequences, auto const& change) {
      slot_cache cache({.model = model, .sequences = sequences, .bound = 4, .by_lane = true});
      kv::host_executor exec;
      kv::cache view = cache.view();
      change(view);
      kv::eviction<kv::random_scores> const policy{.budget = {2}};
      auto [state, plan] = decided(exec, kv::signals{view.lanes}, policy, view);
      return error_of([&] { kv::apply(exec, kv::compact{}, plan, view, state); });
    };
    kv::shape const both{.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4};
    kv::shape const layers{.layers = 2, .query_heads = 1, .kv_heads = 1, .head_dim = 4};
    kv::shape const heads{.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 4};
    auto const no_layer = [](kv::cache& view) { view.lanes.position.layer = 0; };
    auto const no_head = [](kv::cache& view) { view.lanes.position.head = 0; };
    auto const no_sequence = [](kv::cache& view) { view.lanes.position.sequence = 0; };
    CHECK(shared(both, 2, [](kv::cache&) {}).empty());
    CHECK(shared(both, 1, no_layer) ==
          "apply: lanes.position = shared by layers, but these layers decide apart: "
          "reduce_lanes makes them decide together");
    CHECK(shared(both, 1, no_head) ==
          "apply: lanes.position = shared by heads, but these heads decide apart: "
          "reduce_lanes makes them decide together");
    CHECK(error_of([&] { shared(both, 2, no_sequence); }) ==
          "make_state: lanes.position.sequence = 0, but there are 2 sequences, and each has entries of its own");
    CHECK(shared(both, 1, no_sequence).empty());
    CHECK(shared(heads, 1, no_layer).empty());
    CHECK(shared(layers, 1, no_head).empty());
    CHECK(!shared(layers, 1, no_layer).empty());
    CHECK(!shared(heads, 1, no_head).empty());
  }
}

TEST_SUITE("layout/mask") {
  TEST_CASE("a mask is shown row by row, or once for lanes that share their list") {
    std::string const refused = "show: mask.rows = shared by lanes, but these lanes have lists of their own";
    for (int axis = 0; axis < 3; ++axis) {
      four_lanes with(2);
      std::int64_t const row = with.cache.units;
      std::vector<std::byte> memory(as_size(8 * row), std::byte{7});
      kv::mask how{with.cache.list_table(), {{memory.data(), 4 * row, 2 * row, row}, kv::mask_form::boolean, row}};
      (axis == 0 ? how.rows.rows.sequence : axis == 1 ? how.rows.rows.layer : how.rows.rows.head) = 0;
      CHECK(error_of([&] { kv::show(with.exec, how, with.view); }) == refused);
      CHECK(memory == std::vector<std::byte>(memory.size(), std::byte{7}));
    }
    slot_cache one(
        {.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 4, .by_lane = true});
    one.list = {2, 0, 1, 3};
    one.count = {2};
    std::vector<std::byte> memory(as_size(one.units), std::byte{7});
    kv::host_executor exec;
    kv::show(exec, {one.list_table(), {{memory.data(), 0, 0, 0}, kv::mask_form::boolean, one.units}}, one.view());
    std::vector<std::byte> shown(memory.size());
    shown[0] = shown[2] = std::byte{1};
    CHECK(memory == shown);
  }
}

TEST_SUITE("layout/drop_blocks") {
  TEST_CASE("blocks are dropped also where nobody asks which, or how many") {
    for (bool const asks : {true, false}) {
      four_lanes with(1, 2);  // two blocks of two: the last holds one entry, which is dropped
      std::vector<int> const before = with.cache.list;
      kv::drop_blocks how{.table = with.cache.list_table()};
      if (asks) how.freed = with.cache.freed_list();
      kv::apply(with.exec, how, with.plan, with.view, with.state, asks ? &with.told : nullptr);
      for (int i = 0; i < 4; ++i) {
        CHECK(with.cache.held(with.cache.lane_at(i)) == 2);
        CHECK(with.slot(i, 0) == before[as_size(2 * i)]);
      }
      CHECK(with.told == (asks ? kv::apply_stats{8, 4, 8} : kv::apply_stats{}));
      CHECK(with.cache.freed_count == std::vector<int>(4, asks ? 1 : 0));
      if (asks) CHECK(with.cache.freed[0] == before[1]);
    }
  }
}

TEST_SUITE("layout/overwrite") {
  TEST_CASE("what moves along with keys and values moves into the same holes") {
    four_lanes with;
    std::int64_t const lanes = 4, units = with.cache.units;
    std::vector<float> scales(as_size(lanes * units));
    for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i);
    std::vector<kv::plane> const more = {{.base = reinterpret_cast<std::byte*>(scales.data()),
                                          .element = kv::codec::f32,
                                          .channels = 1,
                                          .layer_stride = 2 * units * 4,
                                          .unit_stride = 4,
                                          .token_stride = 4,
                                          .head_stride = units * 4,
                                          .channel_stride = 4}};
    with.view.more = more;
    // Position 0 is dropped from slot 4 i: the row of the highest slot comes there.
    kv::eviction<kv::streaming_llm, kv::position_span> const last_two{
        .score = {.sinks = 0}, .protect = {1, 3}, .budget = {2}};
    kv::decide(with.exec, last_two, kv::signals{with.view.lanes}, with.state, with.plan);
    CHECK(with.apply(kv::overwrite{with.cache.list_table()}).empty());
    for (int i = 0; i < 4; ++i) {
      CHECK(with.slot(i, 0) == 4 * i + 1);
      CHECK(with.slot(i, 1) == 4 * i);
      CHECK(with.slot(i, 2) == 4 * i + 2);
      std::size_t const row = as_size(i * units + 4 * i);
      CHECK(scales[row] == static_cast<float>(row + 2));
      CHECK(scales[row + 1] == static_cast<float>(row + 1));
    }
  }
}

TEST_SUITE("layout/compact") {
  TEST_CASE("rows in place are their sequence's: nothing is freed, whatever is dropped") {
    slot_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 4, .spare = 4});
    int const cursor[] = {1};
    for (bool const turns : {false, true}) {
      kv::host_executor exec;
      kv::cache view = cache.view();
      for (kv::plane* const rows : {&view.k, &view.v}) {
        rows->token_stride = rows->unit_stride;
        rows->unit_stride *= 4;
      }
      view.where = turns ? kv::locator{kv::locating::ring, {cursor}, 4, 1} : kv::identity_map(4);
      cache.count = {0};
      kv::eviction<kv::random_scores> const policy{.budget = {1}};
      auto [state, plan] = state_and_plan(exec, policy, view);
      kv::append(exec, view, state, {.tokens = 4, .position = 0});
      kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
      kv::apply_stats stats;
      kv::apply(exec, kv::compact{}, plan, view, state, &stats);
      CHECK(stats == kv::apply_stats{1, 0, 1});
    }
  }

  TEST_CASE("appliers that take no parameters print their names, and a rope its numbers") {
    CHECK(kv::to_string(kv::compact_rerotated{}) == "compact_rerotated(" + kv::to_string(kv::rope{}) + ")");
    CHECK(kv::to_string(kv::rope{.theta = 500, .style = kv::rope_style::gptj, .dims = 2}) ==
          "rope(theta=500, style=gptj, dims=2)");
    CHECK(kv::to_string(kv::mask_form::bits) == "bits");
    CHECK(kv::to_string(kv::mask_form::additive_bf16) == "additive_bf16");
  }
}

TEST_SUITE("layout/append") {
  TEST_CASE("sequences out of the batch are refused by append, commit, truncate and relist") {
    four_lanes with;
    auto const refusal = [&](auto const& call) { return with.refusal(call); };
    for (int const wrong : {-1, 1}) {
      std::string const text = ": sequence = " + std::to_string(wrong) + ", but the batch has 1 sequences";
      CHECK(refusal([&] { kv::append(with.exec, with.view, with.state, {wrong, 0, 3}); }) == "append" + text);
      CHECK(refusal([&] { kv::commit(with.exec, with.view, wrong, 0); }) == "commit" + text);
      CHECK(refusal([&] { kv::truncate(with.exec, with.view, with.state, wrong, 0); }) == "truncate" + text);
      CHECK(refusal([&] { kv::relist(with.exec, with.cache.redirecting(), with.view, wrong, 0); }) == "relist" + text);
    }
    kv::cache bad = with.view;
    bad.lanes.count.data = nullptr;
    CHECK(refusal([&] { kv::append(with.exec, bad, with.state, {0, 0, 3}); }) ==
          "append: lanes.count = null, but every lane says how many entries it holds");
    auto how = with.cache.redirecting();
    for (int const wrong : {-1, with.cache.units}) {
      how.dead = wrong;
      CHECK(refusal([&] { kv::relist(with.exec, how, with.view, 0, 3); }) ==
            "relist: dead = " + std::to_string(wrong) + ", but the pool has " + std::to_string(with.cache.units) +
                " slots");
    }
    how = with.cache.redirecting();
    CHECK(refusal([&] { kv::relist(with.exec, how, with.view, 0, -1); }) ==
          "relist: length = -1, but a count cannot be negative");
    how.list.data = nullptr;
    CHECK(refusal([&] { kv::relist(with.exec, how, with.view, 0, 3); }) ==
          "relist: list = null, but it is the table that the cache's locator reads, to be written");
    how = with.cache.redirecting();
    how.map.data = nullptr;
    CHECK(refusal([&] { kv::relist(with.exec, how, with.view, 0, 3); }) ==
          "relist: map = null, but live entries take their slots from it");
  }

  TEST_CASE("without a count of drafts there are none: nothing is committed, and truncate cuts all the same") {
    four_lanes with;
    with.view.lanes.in_flight = nullptr;
    kv::commit(with.exec, with.view, 0, 0);
    CHECK(error_of([&] { kv::commit(with.exec, with.view, 0, 1); }) ==
          "commit: tokens = 1, but 0 drafts are in flight");
    kv::truncate(with.exec, with.view, with.state, 0, 1);
    CHECK(with.cache.count == std::vector<int>(4, 1));
  }

  TEST_CASE("relist takes each lane's slots from its own row of the map") {
    four_lanes with;
    auto const how = with.cache.redirecting();
    for (int i = 0; i < 4; ++i) {
      for (int p = 0; p < 4; ++p) with.map(i, p) = 20 + 3 - p + i;
    }
    kv::apply(with.exec, kv::list_rewrite{.list = with.cache.list_table()}, with.plan, with.view, with.state);
    kv::relist(with.exec, how, with.view, 0, 3);
    for (int i = 0; i < 4; ++i) {
      std::vector<int> const row(with.cache.map.begin() + i * with.cache.map_row,
                                 with.cache.map.begin() + i * with.cache.map_row + 4);
      CHECK(with.cache.listed(with.cache.lane_at(i)) == std::vector<int>{23 + i, 22 + i});
      CHECK(row == std::vector<int>{23 + i, 22 + i, with.cache.dead(), 20 + i});
    }
  }
}

TEST_SUITE("ops/fill_row") {
  TEST_CASE("a slot out of the pool, and rows that only their engine can write, are refused") {
    four_lanes with;
    auto const refusal = [&](int slot) { return with.refusal([&] { kv::blank(with.exec, with.view, slot); }); };
    int const units = with.cache.units;
    for (int const wrong : {-1, units}) {
      CHECK(refusal(wrong) ==
            "fill_row: slot = " + std::to_string(wrong) + ", but the pool has " + std::to_string(units) + " slots");
    }
    CHECK(refusal(units - 1).empty());
    CHECK(refusal(0).empty());
    for (kv::plane* const rows : {&with.view.k, &with.view.v}) {
      rows->element = kv::codec::opaque;
      CHECK(refusal(0) == "fill_row: planes = opaque rows, but only their engine can write them");
      rows->element = kv::codec::f32;
    }
  }
}
