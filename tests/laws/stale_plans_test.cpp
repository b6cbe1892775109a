// SPDX-License-Identifier: Apache-2.0
// A decision about one request is not carried out on another one, nor twice: after any call that has changed a lane,
// `apply` refuses the plan that was made before it, and changes nothing.

#include "laws/more_worlds.hpp"

namespace stale_plans_test {

using namespace kvpolicy_test;

/// Requests of equal length, so that counts alone tell nothing.
std::unique_ptr<world> make(kind of) { return make_world(of, false); }

struct event {
  char const* name;
  std::function<void(world&, view)> run;
};

/// What may happen in slot 1 between a decision and `apply`. Afterwards the slot holds as many entries as before.
std::vector<event> events() {
  return {
      {"reset, and another request of as many tokens", [](world& now, view) { now.refill(1); }},
      {"reset, and a fork of another slot",
       [](world& now, view) {
         now.reset_one(1);
         now.fork(3, 1);
       }},
      {"reset, and a load of another request",
       [](world& now, view) {
         now.reset_one(1);
         now.load(1, now.saved);
       }},
      {"a move of another request",
       [](world& now, view) {
         now.move(1, 0);
         now.move(3, 1);
         now.move(0, 3);
       }},
      {"two tokens rolled back, two others appended",
       [](world& now, view) {
         int const to = now.length[1] -= 2;
         now.truncate(view::whole, 1, to);
         ++now.salt;
         for (int t = 0; t < 2; ++t) now.step_one(1);
       }},
      {"a first apply, and as many new tokens as it dropped",
       [](world& now, view of) {
         std::vector<int> before;
         now.for_each_lane(
             [&](world::piece const& each, kv::lane one) { before.push_back(*each.all->lanes.count.row(one)); });
         now.apply(of, 0);
         for (bool fewer = true; fewer;) {
           fewer = false;
           std::size_t i = 0;
           now.for_each_lane([&](world::piece const& each, kv::lane one) {
             fewer = (one.sequence == 1 && is_in(of, one) && *each.all->lanes.count.row(one) < before[i]) || fewer;
             ++i;
           });
           if (fewer) now.step({0, 1, 1, 1});
         }
       }},
  };
}

/// The plan of a world is refused, nothing is changed, and the next decision is carried out.
void refuses(world& now, view of) {
  byte_image const before = now.image();
  std::string const told = error_of([&] { now.apply(of, 0); });
  CHECK_MESSAGE(told.starts_with("apply: plan = "), told);
  CHECK(now.image() == before);
  now.decide(of, 0);
  CHECK(error_of([&] { now.apply(of, 0); }) == "");
}

/// An eviction of a piece alone, whatever its kind of cache.
constexpr cache_world::policy_type trim{.budget = {3}};

void decide(world& now, world::piece const& of, kv::lanes const& batch, kv::plan<kv::host_executor>& into) {
  kv::decide(now.exec, trim, kv::signals{batch}, *of.state, into);
}
std::string apply(world& now, world::piece const& of, kv::lanes const& batch,
                  kv::plan<kv::host_executor> const& decided) {
  kv::cache part = *of.all;
  part.lanes = batch;
  return error_of([&] { kv::apply(now.exec, kv::compact{}, decided, part, *of.state); });
}

TEST_SUITE("laws/stale_plans") {
  TEST_CASE("a plan is refused after another request, a roll-back or a first apply, for every kind of cache and view") {
    for (kind const of : all_kinds) {
      for (view const part : all_views) {
        for (event const& each : events()) {
          INFO(std::string(text_of(of)), ", ", std::string(text_of(part)), ": ", std::string(each.name));
          auto const now = make(of);
          now->decide(part, 0);
          each.run(*now, part);
          refuses(*now, part);
        }
      }
    }
  }

  TEST_CASE("a plan is refused after reorder, copy_from and grow") {
    for (bool const shared : {false, true}) {
      for (view const part : all_views) {
        INFO(std::string(text_of(part)));
        cache_world reordered(shared, false);
        reordered.decide(part, 0);
        kv::reorder(reordered.exec, reordered.cell.all, *reordered.cell.state, std::array{0, 3, 1, 2});
        refuses(reordered, part);

        cache_world copied(shared, false);
        cache_world other(shared, false);
        other.refill(1);
        copied.decide(part, 0);
        copied.cell.state->copy_from(*other.cell.state);
        refuses(copied, part);
      }
      cache_world grown(shared, false);
      mock_options how = grown.cell.mock.options();
      how.bound *= 2;
      mock_cache larger(how);
      for (kv::lane const one : lanes_of(larger)) {
        larger.put(one, grown.cell.mock.positions(one, grown.cell.mock.count(one)));
      }
      grown.decide(view::whole, 0);
      kv::cache roomy = larger.view();
      kv::grow(grown.exec, grown.policy, roomy, *grown.cell.state);
      auto const before = larger.save();
      CHECK(error_of([&] { kv::apply(grown.exec, kv::compact{}, *grown.cell.plans[0], roomy, *grown.cell.state); }) !=
            "");
      CHECK(larger.save() == before);
    }
  }

  TEST_CASE("a plan is not carried out with another state, of the same policy or of another one") {
    for (kind const of : all_kinds) {
      auto const refuses = [of](char const* which, auto const& state_of) {
        INFO(std::string(text_of(of)), ", ", std::string(which));
        auto const now = make(of);
        world::piece const mine = now->pieces().back();
        kv::plan<kv::host_executor> plan = kv::make_plan(now->exec, trim, *mine.all, kv::compact{});
        decide(*now, mine, mine.all->lanes, plan);
        byte_image const before = now->image();
        auto&& other = state_of(*now, *mine.all);
        CHECK(apply(*now, {mine.all, &other}, mine.all->lanes, plan) != "");
        CHECK(now->image() == before);
        CHECK(apply(*now, mine, mine.all->lanes, plan) == "");
      };
      auto const like = make(of);
      refuses("the same policy", [&](world&, kv::cache const&) -> auto& { return *like->pieces().back().state; });
      refuses("h2o", [](world& now, kv::cache const& in) { return kv::make_state(now.exec, kv::policies::h2o(), in); });
      refuses("knorm",
              [](world& now, kv::cache const& in) { return kv::make_state(now.exec, kv::policies::knorm(), in); });
    }
  }

  TEST_CASE("the plan of a part outlives changes of other slots") {
    struct part_of_slots {
      view of;
      int other;  ///< a slot outside of it
    };
    for (kind const of : all_kinds) {
      for (part_of_slots const& part : {part_of_slots{view::list, 2}, part_of_slots{view::sequences, 3}}) {
        INFO(std::string(text_of(of)), ", ", std::string(text_of(part.of)));
        auto const now = make(of);
        now->decide(part.of, 0);
        now->refill(part.other);
        now->truncate(view::whole, part.other, 7);
        CHECK(error_of([&] { now->apply(part.of, 0); }) == "");
      }
    }
  }

  TEST_CASE("the plan of a layer outlives changes of other layers, and is carried out once") {
    for (kind const of : all_kinds) {
      INFO(std::string(text_of(of)));
      auto const now = make(of);
      world::piece const mine = now->pieces().back();
      auto first = kv::make_plan(now->exec, trim, *mine.all, kv::compact{});
      auto second = kv::make_plan(now->exec, trim, *mine.all, kv::compact{});
      kv::lanes const layer_0 = mine.all->lanes.layers_only(0, 1);
      kv::lanes const layer_1 = mine.all->lanes.layers_only(1, 2);
      decide(*now, mine, layer_0, first);
      decide(*now, mine, layer_1, second);
      CHECK(apply(*now, mine, mine.all->lanes, first) == "");
      CHECK(apply(*now, mine, mine.all->lanes, second) == "");
      CHECK(apply(*now, mine, mine.all->lanes, first) != "");
      decide(*now, mine, layer_0, first);
      CHECK(apply(*now, mine, layer_0, first) == "");
    }
  }

  TEST_CASE("commit, and drafts that are rolled back, are found by counts") {
    for (kind const of : all_kinds) {
      if (of == kind::dual) continue;  // drafts are in the window
      for (view const part : {view::whole, view::sequences, view::list}) {
        INFO(std::string(text_of(of)), ", ", std::string(text_of(part)));
        auto const now = make(of);
        now->append(view::whole, {1, 2, 10, true});
        now->decide(part, 0);
        now->commit(view::whole, 1, 1);
        refuses(*now, part);
      }
    }
  }

  TEST_CASE("a plan is refused after restore_order, which puts entries in other places") {
    cache_world now(false, false);
    kv::cache all = now.cell.all;
    std::vector<kv::lane_order> orders(as_size(now.cell.mock.lane_count()));
    all.lanes.order = {orders.data(), 4, 2, 1};
    kv::eviction const one{.score = kv::trim_kv{}, .budget = kv::per_lane{6}, .pick = kv::lowest_one{}};
    auto plan = kv::make_plan(now.exec, one, all, kv::overwrite{});
    auto const decide = [&] { kv::decide(now.exec, one, kv::signals{all.lanes}, *now.cell.state, plan); };
    auto const apply = [&] {
      return error_of([&] { kv::apply(now.exec, kv::overwrite{}, plan, all, *now.cell.state); });
    };
    decide();
    CHECK(apply() == "");
    decide();
    kv::restore_order(now.exec, all, *now.cell.state);
    byte_image const before = now.image();
    CHECK(apply() != "");
    CHECK(now.image() == before);
    decide();
    CHECK(apply() == "");
  }
}

}  // namespace stale_plans_test
