// SPDX-License-Identifier: Apache-2.0
// The edges of a request's life: columns that slid, slots that are free or not, what is left of an earlier request, and
// objects that were moved from.

#include "laws/more_worlds.hpp"

namespace edges_test {

using namespace kvpolicy_test;

/// What the lanes of each slot hold.
std::vector<byte_image> slots_of(world& now) {
  std::vector<byte_image> made(world::slots);
  now.for_each_lane([&](world::piece const& each, kv::lane one) {
    add_lane(made[as_size(one.sequence)], *each.all, *each.state, one);
  });
  return made;
}
/// A slot without entries.
byte_image nothing_in(world& now) {
  byte_image made;
  now.for_each_lane([&](world::piece const&, kv::lane one) {
    for (int i = 0; one.sequence == 0 && i < 2; ++i) add_number(made, 0);  // its count and its drafts
  });
  return made;
}

/// After `call` the slots hold what `expected` makes of what they held.
void moves_slots(std::string const& name, std::function<void(dual_world&)> const& call,
                 std::function<void(std::vector<byte_image>&, byte_image const&)> const& expected) {
  INFO(name);
  dual_world now(false);
  REQUIRE(now.state.window.slid() > 0);
  std::vector<byte_image> after = slots_of(now);
  byte_image const nothing = nothing_in(now);
  call(now);
  expected(after, nothing);
  std::vector<byte_image> const found = slots_of(now);
  for (std::size_t s = 0; s < world::slots; ++s) CHECK_MESSAGE(found[s] == after[s], name, ": slot ", s);
}

/// Every page is free or in one lane's table.
bool all_pages_are_somewhere(dual_world& now) { return now.engine.free_pages() + now.engine.held_pages() == 64; }

std::string fork_onto(world& now, int slot) {
  byte_image const before = now.image();
  std::string told = error_of([&] { now.fork(slot == 1 ? 2 : 1, slot); });
  if (!told.empty()) CHECK(now.image() == before);
  return told;
}

/// A call on something that was moved from is refused.
void refuses(std::string const& what, std::function<void()> const& call) {
  std::string const told = error_of(call);
  CHECK_MESSAGE(told.find("moved") != std::string::npos, what, ": ", told);
}

TEST_SUITE("laws/edges") {
  TEST_CASE("reset, fork, move, load and truncate where columns slid are about their slots alone") {
    auto const last_is_empty = [](std::vector<byte_image>& all, byte_image const& nothing) { all[3] = nothing; };
    moves_slots("reset of the last slot", [](dual_world& now) { now.reset_one(3); }, last_is_empty);
    moves_slots(
        "reset of all slots", [](dual_world& now) { now.reset(std::array{3, 1, 0, 2}); },
        [](std::vector<byte_image>& all, byte_image const& nothing) { all.assign(all.size(), nothing); });
    moves_slots(
        "fork", [](dual_world& now) { now.fork(3, 0); },
        [](std::vector<byte_image>& all, byte_image const&) { all[0] = all[3]; });
    moves_slots(
        "fork to the last slot",
        [](dual_world& now) {
          now.reset_one(3);
          now.fork(1, 3);
        },
        [](std::vector<byte_image>& all, byte_image const&) { all[3] = all[1]; });
    moves_slots(
        "move", [](dual_world& now) { now.move(3, 0); },
        [](std::vector<byte_image>& all, byte_image const& nothing) {
          all[0] = all[3];
          all[3] = nothing;
        });
    moves_slots(
        "load", [](dual_world& now) { now.load(0, now.saved); },
        [](std::vector<byte_image>& all, byte_image const&) { all[0] = all[3]; });
    moves_slots(
        "reset and load of the last slot",
        [](dual_world& now) {
          now.reset_one(3);
          now.load(3, now.saved);
        },
        [](std::vector<byte_image>&, byte_image const&) {});
    moves_slots(
        "truncate of the last slot to nothing", [](dual_world& now) { now.truncate(view::whole, 3, 0); },
        last_is_empty);
  }

  TEST_CASE("a state copies another one whose columns slid further, or less") {
    dual_world now(false);
    auto other = kv::make_state(now.exec, now.policy, now.all);
    for (int const tokens : {0, 1}) {  // a step of one slot alone moves the columns back
      if (tokens > 0) now.step_one(1, tokens);
      other.window.copy_from(now.state.window);
      CHECK(other.window.slid() == now.state.window.slid());
      for (int i = 0; i < now.all.window.lanes.size(); ++i) {
        byte_image mine, copied;
        add_lane(mine, now.all.window, now.state.window, now.all.window.lanes.at(i));
        add_lane(copied, now.all.window, other.window, now.all.window.lanes.at(i));
        CHECK(mine == copied);
      }
    }
  }

  TEST_CASE("a slot whose columns slid begins with zeros after a reset") {
    dual_world now(false);
    now.reset_one(3);
    now.length[3] = 0;
    now.append(view::whole, {3, 4, 0});
    for (kv::recorded_column const& each : now.state.window.columns()) {
      for (int i = 0; i < 4; ++i) {
        auto const* const row = reinterpret_cast<float const*>(each.rows.row({3, i / 2, i % 2}));
        CHECK(std::vector<float>(row, row + 4) == std::vector<float>(4, 0));
      }
    }
  }

  TEST_CASE("the memory of a session is saved and loaded where columns slid") {
    kv::eviction<kv::intent_kv> const policy{.budget = {8}};
    kv::host_executor exec;
    mock_cache mock(cache_world::cell_type::shape_of(false, 2, 2, 0));
    auto state = kv::make_state(exec, policy, mock.view(), 8);
    state.slide(5);
    std::vector<std::byte> memory(state.session_bytes()), other(memory.size());
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i % 251);
    for (int slot = 0; slot < world::slots; ++slot) state.load_session(exec, slot, memory.data());
    kv::cache all = mock.view();
    kv::reset(exec, all, state, 3);
    state.save_session(exec, 3, other.data());
    CHECK(other == std::vector<std::byte>(memory.size()));
    state.save_session(exec, 2, other.data());
    CHECK(other == memory);
  }

  TEST_CASE("a slot that holds entries is not free, whoever put them there") {
    for (kind const of : all_kinds) {
      INFO(std::string(text_of(of)));
      auto const now = make_world(of);
      for (int slot = 1; slot < world::slots; ++slot) CHECK(fork_onto(*now, slot).find("a request uses") < 99);
      CHECK(error_of([&] { now->load(1, now->saved); }).find("a request uses") < 99);
      now->truncate(view::whole, 1, 0);
      CHECK(fork_onto(*now, 1) == "");
      CHECK(fork_onto(*now, 1) != "");
      now->append(view::whole, {0, 2, 0, true});  // drafts alone
      CHECK(fork_onto(*now, 0) != "");
      now->truncate(view::whole, 0, 0);
      CHECK(fork_onto(*now, 0) == "");
      now->reset_one(0);
      *now->pieces().back().all->lanes.count.row({0, 1, 0}) = 1;  // an engine that fills a lane itself
      CHECK(fork_onto(*now, 0) != "");
    }
  }

  TEST_CASE("compact_rerotated, ingest, promote and a refused append leave slots used or free as they are") {
    cache_world turned(false);
    turned.decide(view::whole, 0);
    kv::apply(turned.exec, kv::compact_rerotated{}, *turned.cell.plans[0], turned.cell.all, *turned.cell.state);
    for (int slot = 1; slot < world::slots; ++slot) CHECK(fork_onto(turned, slot) != "");
    CHECK(error_of([&] { turned.append(view::whole, {2, 1, 0}); }) != "");
    CHECK(fork_onto(turned, 0) == "");

    dual_world fed;
    fed.bring_chunk({9, 0, 0, 0});
    fed.ingest();
    CHECK(fork_onto(fed, 0) != "");
    CHECK(all_pages_are_somewhere(fed));
    fed.reset_one(0);
    CHECK(all_pages_are_somewhere(fed));
    fed.bring_chunk({2, 0, 0, 0});  // it stays in the window
    fed.ingest();
    CHECK(fork_onto(fed, 0) != "");

    groups_world refused;
    refused.all.groups[1].entries.lanes.capacity = world::bound - 1;
    CHECK(error_of([&] { refused.append(view::whole, {0, 3, 0}); }) != "");
    refused.all.groups[1].entries.lanes.capacity = world::bound;
    CHECK(fork_onto(refused, 0) == "");
  }

  TEST_CASE("a slot that was truncated to position 0 keeps nothing of its request, as one that was reset") {
    kv::eviction<kv::intent_kv> const policy{.budget = {8}};
    kv::host_executor exec;
    mock_cache mock(cache_world::cell_type::shape_of(false, 2, 2, 0));
    kv::cache all = mock.view();
    for (view const of : {view::whole, view::sequences, view::list}) {
      auto state = kv::make_state(exec, policy, all);
      kv::append(exec, all, state, {.sequence = 1, .tokens = 6, .position = 0});
      std::vector<std::byte> memory(state.session_bytes(), std::byte{1}), left(memory.size());
      for (int slot = 0; slot < world::slots; ++slot) state.load_session(exec, slot, memory.data());
      kv::cache part = part_of(all, of);
      kv::truncate(exec, part, state, sequence_in(of, 1), 3);  // it is the same request
      state.save_session(exec, 1, left.data());
      CHECK(left == memory);
      kv::truncate(exec, part, state, sequence_in(of, 1), 0);
      for (int slot = 0; slot < world::slots; ++slot) {
        state.save_session(exec, slot, left.data());
        CHECK(left == (slot == 1 ? std::vector<std::byte>(memory.size()) : memory));
      }
    }
  }

  TEST_CASE("a move of a dual cache in a full pool is refused in its own name, or works") {
    dual_world now(true, 24);
    byte_image const before = now.image();
    std::string const told = error_of([&] { now.move(3, 0); });
    if (!told.empty()) {
      CHECK_MESSAGE(told.starts_with("move: "), told);
      CHECK(now.image() == before);
    }
  }

  TEST_CASE("scores are asked for of segments and entries that there are") {
    cache_world now(false);
    now.decide(view::whole, 0);
    kv::plan<kv::host_executor> const& plan = *now.cell.plans[0];
    CHECK(error_of([&] { static_cast<void>(plan.score(plan.segments() - 1, 0)); }) == "");
    for (auto const& [segment, ordinal] : {std::pair{99999, 0},
                                           {-1, 0},
                                           {plan.segments(), 0},
                                           {5, -1},
                                           {5, 24},
                                           {5, plan.keep().entry_count[5]},
                                           {0, 0}}) {
      CHECK(error_of([&] { static_cast<void>(plan.score(segment, ordinal)); }).starts_with("score: "));
    }
    now.decide(view::sequences, 0);
    CHECK(error_of([&] { static_cast<void>(plan.score(7, 0)); }) == "");
    CHECK(error_of([&] { static_cast<void>(plan.score(8, 0)); }) != "");
  }
}

TEST_SUITE("laws/edges") {
  TEST_CASE("states and plans that were moved from are refused by every call, and end well") {
    cache_world now(false);
    kv::host_executor& exec = now.exec;
    cache_world::cell_type& cell = now.cell;
    now.decide(view::whole, 0);
    kv::plan<kv::host_executor> const moved_plan = std::move(*cell.plans[0]);
    refuses("apply", [&] { now.apply(view::whole, 0); });
    refuses("decide", [&] { now.decide(view::whole, 0); });
    refuses("score", [&] { static_cast<void>(cell.plans[0]->score(0, 0)); });
    refuses("report", [&] { static_cast<void>(cell.plans[0]->report()); });

    world::state_type const moved = std::move(*cell.state);
    refuses("decide", [&] { now.decide(view::whole, 1); });
    refuses("observe", [&] { now.observe(view::whole, 1); });
    refuses("append", [&] { now.append(view::whole, {1, 1, 20}); });
    refuses("truncate", [&] { now.truncate(view::whole, 1, 3); });
    refuses("reset", [&] { now.reset_one(1); });
    refuses("fork", [&] { now.fork(1, 0); });
    refuses("move", [&] { now.move(1, 0); });
    refuses("saved_bytes", [&] { static_cast<void>(now.saved_bytes(1)); });
    refuses("save", [&] { now.save(1, now.saved); });
    refuses("load", [&] { now.load(0, now.saved); });
    refuses("reorder", [&] { kv::reorder(exec, cell.all, *cell.state, std::array{1, 0, 2, 3}); });
    refuses("grow", [&] {
      kv::cache larger = cell.all;
      larger.lanes.capacity *= 2;
      kv::grow(exec, now.policy, larger, *cell.state);
    });
    auto other = kv::make_state(exec, now.policy, cell.all);
    CHECK(error_of([&] { other.copy_from(*cell.state); }) != "");
    CHECK(error_of([&] { cell.state->copy_from(other); }) != "");
    std::byte none{};
    refuses("save_session", [&] { cell.state->save_session(exec, 0, &none); });
    refuses("load_session", [&] { cell.state->load_session(exec, 0, &none); });
    cell.state.emplace(std::move(other));  // a new one takes its place
    CHECK(error_of([&] { now.decide(view::whole, 1); }) == "");

    dual_world both;
    kv::exit_plan<kv::host_executor> const moved_exits = std::move(both.exits);
    refuses("promote", [&] { both.promote(view::whole, {0, 1, 1, 1}); });
    kv::dual_state<kv::host_executor> const moved_both = std::move(both.state);
    refuses("reset of a dual cache", [&] { both.reset_one(1); });
    refuses("truncate of a dual cache", [&] { both.truncate(view::whole, 1, 2); });

    groups_world groups;
    kv::group_states<kv::host_executor> const moved_states = std::move(groups.states);
    CHECK(error_of([&] { groups.append(view::whole, {1, 1, 20}); }) != "");
  }

  TEST_CASE("a policy that was moved from is refused by every call, and ends well") {
    kv::host_executor exec;
    mock_cache mock(cache_world::cell_type::shape_of(false, 2, 2, 0));
    kv::cache all = mock.view();
    kv::any_policy policy = kv::parse("h2o | budget(8)");
    auto [state, plan] = state_and_plan(exec, policy, all);
    kv::any_policy const taken = std::move(policy);
    refuses("make_state", [&] { static_cast<void>(kv::make_state(exec, policy, all)); });
    refuses("make_plan", [&] { static_cast<void>(kv::make_plan(exec, policy, all)); });
    refuses("observe", [&] { kv::observe(exec, policy, kv::signals{all.lanes}, state); });
    refuses("decide", [&] { kv::decide(exec, policy, kv::signals{all.lanes}, state, plan); });
    refuses("due", [&] { static_cast<void>(kv::due(policy, all)); });
    refuses("needs", [&] { static_cast<void>(policy.needs()); });
    refuses("to_string", [&] { static_cast<void>(kv::to_string(policy)); });
    kv::any_policy copy = taken;
    policy = copy;
    CHECK(kv::to_string(policy) == kv::to_string(taken));
    CHECK(error_of([&] { static_cast<void>(kv::make_state(exec, policy, all)); }) == "");
  }
}

}  // namespace edges_test
