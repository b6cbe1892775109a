// SPDX-License-Identifier: Apache-2.0
// A call that throws has changed nothing: each call of a request's life with its n-th allocation failing, for every n,
// and calls for groups of which the second one refuses.

#include "laws/more_worlds.hpp"

namespace midway_test {

using namespace kvpolicy_test;

using maker = std::function<std::unique_ptr<world>()>;

maker maker_of(kind of) {
  return [of] { return make_world(of); };
}

/// Runs a call with each of its allocations failing. Every failure must leave the world as it was.
void fails_everywhere(std::string const& name, maker const& make, std::function<void(world&)> const& call) {
  INFO(name);
  std::unique_ptr<world> now = make();
  byte_image before = now->image();
  long changes = 0;
  long n = 0;
  for (;; ++n) {
    bool failed = false;
    std::string const refused = error_of([&] { failed = fails_at_allocation(n, [&] { call(*now); }); });
    until_failure = -1;
    REQUIRE(refused == "");
    if (!failed) break;
    if (now->image() == before) continue;
    ++changes;
    now = make();
    before = now->image();
  }
  CHECK_MESSAGE(changes == 0, name, ": ", changes, " of ", n, " failing allocations leave a change");
}

/// A cache with twice the room, whose counts are those of a smaller one.
struct roomier {
  explicit roomier(cache_world& of) : mock(wider(of)) {
    for (kv::lane const one : lanes_of(mock)) {
      mock.put(one, of.cell.mock.positions(one, of.cell.mock.count(one)));
    }
  }
  static mock_options wider(cache_world& of) {
    mock_options how = of.cell.mock.options();
    how.bound *= 2;
    return how;
  }
  mock_cache mock;
};

TEST_SUITE("laws/midway") {
  TEST_CASE("a request's calls change nothing when memory runs out in them, whatever the kind of cache") {
    std::array const two{1, 3};
    for (kind const of : all_kinds) {
      INFO(std::string(text_of(of)));
      maker const make = maker_of(of);
      auto const fails = [&](std::string const& name, std::function<void(world&)> const& call) {
        fails_everywhere(name, make, call);
      };
      fails("reset of one slot", [](world& now) { now.reset_one(3); });
      if (of != kind::groups) fails("reset of two slots", [&](world& now) { now.reset(two); });
      fails("fork", [](world& now) { now.fork(2, 0); });
      fails("move", [](world& now) { now.move(2, 0); });
      fails("load", [](world& now) { now.load(0, now.saved); });
      fails("append", [](world& now) { now.append(view::whole, {2, 2, now.length[2]}); });
      fails("append of drafts", [](world& now) { now.append(view::whole, {2, 2, now.length[2], true}); });
      fails("append to a list", [](world& now) { now.append(view::list, {1, 2, now.length[1]}); });
      fails("truncate", [](world& now) { now.truncate(view::whole, 2, 9); });
      fails("truncate to nothing", [](world& now) { now.truncate(view::whole, 2, 0); });
      fails("commit", [](world& now) { now.commit(view::whole, 2, 0); });
      fails("observe", [](world& now) { now.observe(view::whole, 1); });
      fails("promote", [](world& now) { now.promote(view::whole, {0, 2, 1, 0}); });
      fails("decide", [](world& now) { now.decide(view::whole, 0); });
      fails("apply", [](world& now) {
        now.decide(view::whole, 0);
        now.apply(view::whole, 0);
      });
      fails("make_state", [](world& now) { now.make_state(); });
      fails("make_plan", [](world& now) { now.make_plan(); });
    }
  }
  TEST_CASE("save writes nothing when memory runs out in it") {
    for (kind const of : all_kinds) {
      INFO(std::string(text_of(of)));
      fails_everywhere("save", maker_of(of), [](world& now) { now.save(2, now.saved); });
    }
  }

  TEST_CASE("reorder, grow and copy_on_write change nothing when memory runs out in them") {
    for (bool const shared : {false, true}) {
      maker const make = maker_of(shared ? kind::shared_table : kind::plain);
      fails_everywhere("reorder", make, [](world& now) {
        auto& one = dynamic_cast<cache_world&>(now);
        kv::reorder(one.exec, one.cell.all, *one.cell.state, std::array{3, 0, 2, 1});
      });
      cache_world like(shared);
      roomier larger(like);
      fails_everywhere("grow", make, [&](world& now) {
        auto& one = dynamic_cast<cache_world&>(now);
        kv::grow(one.exec, one.policy, larger.mock.view(), *one.cell.state);
      });
    }
    fails_everywhere("copy_on_write", maker_of(kind::shared_table), [](world& now) {
      auto& one = dynamic_cast<cache_world&>(now);
      kv::by_lane<int const> const read = one.cell.all.where.table;
      kv::by_lane<int> const table{const_cast<int*>(read.data), read.sequence, read.layer, read.head};
      // The pages of slot 0, which is free, are there for whoever wants them.
      int next = 0;
      kv::copy_on_write(one.exec, one.cell.all, table, 3, 0, [&](int) { return read.row({0, 0, 0})[next++]; });
    });
  }

  TEST_CASE("ingest and a step change nothing when memory runs out in them") {
    maker const with_chunk = [] {
      auto made = std::make_unique<dual_world>();
      made->bring_chunk({0, 7, 0, 9});
      return made;
    };
    fails_everywhere("ingest", with_chunk, [](world& now) { dynamic_cast<dual_world&>(now).ingest(); });
    maker const with_plan = [] {
      auto made = std::make_unique<dual_world>();
      made->stepping.emplace(kv::make_plan(made->exec, made->policy, made->all));
      return made;
    };
    fails_everywhere("step", with_plan,
                     [](world& now) { dynamic_cast<dual_world&>(now).step_of_library(view::whole, 2, 2); });
  }

  TEST_CASE("a call for groups that the second group refuses changes no group") {
    auto const refuses = [](std::string const& name, auto const& prepare, auto const& call) {
      INFO(name);
      groups_world now;
      prepare(now);
      byte_image const before = now.image();
      std::string const told = error_of([&] { call(now); });
      CHECK_MESSAGE(told.ends_with(", in group second"), name, ": ", told);
      CHECK_MESSAGE(now.image() == before, name);
    };
    auto const wrong_count = [](int slot) {
      return [slot](groups_world& now) { now.second.mock.count({slot, 1, 0}) = world::bound + 1; };
    };
    // A token that an eviction has put among older ones.
    std::vector<kv::lane_order> orders(std::size_t{world::slots} * 2);
    auto const disordered = [&](groups_world& now) {
      kv::lanes& lanes = now.all.groups[1].entries.lanes;
      lanes.order = {orders.data(), 2, 1, 1};
      orders.assign(orders.size(), {});
      orders[2 * 2] = {.begin = 2, .end = 4, .newest = now.second.mock.position({2, 0, 0}, 3)};
    };
    refuses("append", wrong_count(2), [](groups_world& now) { now.append(view::whole, {2, 1, 11}); });
    refuses("commit", wrong_count(2), [](groups_world& now) { now.commit(view::whole, 2, 0); });
    refuses("truncate", wrong_count(2), [](groups_world& now) { now.truncate(view::whole, 2, 9); });
    refuses("truncate among older ones", disordered, [](groups_world& now) { now.truncate(view::whole, 2, 4); });
    refuses("save", wrong_count(2), [](groups_world& now) { now.save(2, now.saved); });
    refuses("save out of order", disordered, [](groups_world& now) { now.save(2, now.saved); });
    auto const used = [](groups_world& now) {
      kv::append(now.exec, now.all.groups[1].entries, now.states[1], {.sequence = 0, .tokens = 1});
    };
    refuses("fork", used, [](groups_world& now) { now.fork(2, 0); });
    refuses("move", used, [](groups_world& now) { now.move(2, 0); });
    refuses("load", used, [](groups_world& now) { now.load(0, now.saved); });
    refuses("move of a wrong count", wrong_count(2), [](groups_world& now) { now.move(2, 0); });
    auto const another_state = [](groups_world& now) {
      kv::cache other = now.all.groups[1].entries;
      other.lanes.capacity -= 1;
      now.states.of[1].emplace(kv::make_state(now.exec, now.policy, other));
    };
    refuses("reset with another state", another_state, [](groups_world& now) { now.reset_one(3); });
    refuses("load with another state", another_state, [](groups_world& now) { now.load(0, now.saved); });
    refuses("truncate with another state", another_state, [](groups_world& now) { now.truncate(view::whole, 2, 9); });
    refuses("observe with another state", another_state, [](groups_world& now) { now.observe(view::whole, 1); });
    refuses(
        "commit of drafts that one group lacks",
        [](groups_world& now) {
          now.append(view::whole, {2, 2, 11, true});
          now.second.mock.set_drafts(2, 1);
        },
        [](groups_world& now) { now.commit(view::whole, 2, 2); });
    refuses(
        "load of half of the bytes", [](groups_world& now) { now.saved.pop_back(); },
        [](groups_world& now) { now.load(0, now.saved); });
  }
}

}  // namespace midway_test
