// SPDX-License-Identifier: Apache-2.0
// A call on a part of a batch equals the same call on the whole for that part, and changes nothing else; or it refuses,
// and changes nothing.

#include "laws/more_worlds.hpp"
#include "layout/slot_cache.hpp"
#include "support/kept_lists.hpp"

namespace parts_laws_test {

using namespace kvpolicy_test;

constexpr view parts[] = {view::sequences, view::layers, view::list};

enum class may { refuse, not_refuse, only_refuse };

/// Makes a call on the whole of one world, and on a part of another one.
void law(
    std::string const& name, kind of, view part, may refuse, std::function<void(world&, view)> const& call,
    bool ragged = true, std::function<void(world&)> const& prepare = [](world&) {}) {
  INFO(std::string(text_of(of)), ", ", std::string(text_of(part)), ": ", name);
  auto const whole = make_world(of, ragged);
  auto const some = make_world(of, ragged);
  for (auto const* each : {&whole, &some}) prepare(**each);
  std::vector<byte_image> const before = some->lanes();
  byte_image const image = some->image();
  REQUIRE(error_of([&] { call(*whole, view::whole); }) == "");
  std::string const told = error_of([&] { call(*some, part); });
  if (!told.empty()) {
    CHECK_MESSAGE(refuse != may::not_refuse, told);
    CHECK_MESSAGE(some->image() == image, told);
    return;
  }
  CHECK(refuse != may::only_refuse);
  std::vector<byte_image> const after = some->lanes(), expected = whole->lanes();
  std::size_t i = 0;
  some->for_each_lane([&](world::piece const&, kv::lane one) {
    CHECK_MESSAGE(after[i] == (is_in(part, one) ? expected[i] : before[i]), "lane (", one.sequence, ", ", one.layer,
                  ", ", one.head, ")");
    ++i;
  });
  if (auto* const both = dynamic_cast<dual_world*>(some.get())) {
    CHECK(both->engine.free_pages() + both->engine.held_pages() == 64);
  }
}

/// Numbers of slots, in the order of the sequences of a part.
std::vector<int> in_order(view of, std::vector<int> const& by_slot) {
  if (of == view::list) return {by_slot[3], by_slot[1]};
  return of == view::sequences ? std::vector<int>{by_slot[1], by_slot[2]} : by_slot;
}

TEST_SUITE("laws/parts") {
  TEST_CASE("append, truncate, commit and observe of a part are about its lanes alone") {
    for (kind const of : all_kinds) {
      for (view const part : parts) {
        // Drafts, and the tokens of a window, are of all layers.
        may const all = part == view::layers ? may::only_refuse : may::not_refuse;
        law("append", of, part, all, [](world& now, view v) { now.append(v, {sequence_in(v, 1), 2, now.length[1]}); });
        law("append of drafts", of, part, all,
            [](world& now, view v) { now.append(v, {sequence_in(v, 1), 1, now.length[1], true}); });
        law("truncate", of, part, all, [](world& now, view v) { now.truncate(v, sequence_in(v, 1), 7); });
        law("truncate to nothing", of, part, all, [](world& now, view v) { now.truncate(v, sequence_in(v, 1), 0); });
        law(
            "commit", of, part, all, [](world& now, view v) { now.commit(v, sequence_in(v, 1), 1); }, true,
            [](world& now) { now.append(view::whole, {1, 2, now.length[1], true}); });
        law("observe", of, part, may::not_refuse, [](world& now, view v) {
          ++now.salt;
          now.observe(v, 2);
        });
        law(
            "observe where columns slid", of, part, may::not_refuse,
            [](world& now, view v) {
              ++now.salt;
              now.observe(v, 1);
            },
            false);
      }
    }
  }

  TEST_CASE("append, truncate and commit refuse a sequence that is not in the part") {
    for (kind const of : all_kinds) {
      for (view const part : parts) {
        INFO(std::string(text_of(of)), ", ", std::string(text_of(part)));
        auto const now = make_world(of);
        now->append(view::whole, {3, 1, now->length[3], true});
        byte_image const before = now->image();
        std::vector<int> const outside = part == view::sequences ? std::vector{0, 3, -1, 4}
                                         : part == view::list    ? std::vector{2, -1}
                                                                 : std::vector{4, -1};
        for (int const sequence : outside) {
          CHECK(error_of([&] { now->append(part, {sequence, 1, 12}); }) != "");
          CHECK(error_of([&] { now->truncate(part, sequence, 8); }) != "");
          CHECK(error_of([&] { now->commit(part, sequence, 0); }) != "");
          CHECK(now->image() == before);
        }
      }
    }
  }

  TEST_CASE("decide and apply of a part are about its lanes alone") {
    for (kind const of : all_kinds) {
      for (view const part : parts) {
        for (bool const ragged : {true, false}) {
          law(
              "decide and apply", of, part, may::not_refuse,
              [](world& now, view v) {
                now.decide(v, 0);
                now.apply(v, 0);
              },
              ragged);
        }
        law("apply on the whole", of, part, may::not_refuse, [](world& now, view v) {
          now.decide(v, 0);
          now.apply(v == view::list ? v : view::whole, 0);
        });
        law("evict in turns", of, part, may::not_refuse, [](world& now, view v) {
          for (world::piece const& each : now.pieces()) {
            kv::cache in = part_of(*each.all, v);
            if (!each.all->lanes.newer.count && each.all->where.kind == kv::locating::ring) continue;  // a window
            auto plan =
                kv::make_plan(now.exec, cache_world::policy, *each.all, kv::at_once{.sequences = 1}, kv::compact{});
            kv::evict(now.exec, cache_world::policy, kv::signals{in.lanes}, kv::compact{}, in, *each.state, plan);
          }
        });
      }
    }
  }

  TEST_CASE("calls about slots refuse a part, or are about it alone") {
    for (kind const of : {kind::plain, kind::shared_table}) {
      for (view const part : parts) {
        auto const one = [&](std::string const& name, auto const& call) {
          law(name, of, part, may::refuse, [&](world& now, view v) {
            auto& mine = dynamic_cast<cache_world&>(now);
            kv::cache in = part_of(mine.cell.all, v);
            call(mine, in, *mine.cell.state);
          });
        };
        one("reset", [](auto& now, auto& in, auto& state) { kv::reset(now.exec, in, state, 1); });
        one("fork", [](auto& now, auto& in, auto& state) { kv::fork(now.exec, in, state, 1, 0); });
        one("move", [](auto& now, auto& in, auto& state) { kv::move(now.exec, in, state, 1, 0); });
        one("load", [](auto& now, auto& in, auto& state) { kv::load(now.exec, in, state, 0, now.saved); });
        one("reorder", [](auto& now, auto& in, auto& state) {
          std::vector<int> order{0, 2, 1, 3};
          order.resize(as_size(in.lanes.sequences));
          if (order.size() == 2) order = {1, 0};
          kv::reorder(now.exec, in, state, order);
        });
        one("save", [](auto& now, auto& in, auto& state) { kv::save(now.exec, in, state, 1, now.saved); });
      }
    }
  }

  TEST_CASE("restore_order and due of a part are about its lanes alone") {
    kv::eviction const policy{.score = kv::trim_kv{}, .budget = kv::per_lane{6}, .pick = kv::lowest_one{}};
    for (view const part : parts) {
      cache_world whole(false), some(false);
      std::vector<byte_image> before;
      std::vector<kv::lane_order> orders[2];
      auto const restored = [&](cache_world& now, view v, std::vector<kv::lane_order>& order) {
        order.assign(as_size(now.cell.mock.lane_count()), {});
        kv::cache all = now.cell.all;
        all.lanes.order = {order.data(), 4, 2, 1};
        auto plan = kv::make_plan(now.exec, policy, all, kv::overwrite{});
        kv::decide(now.exec, policy, kv::signals{all.lanes}, *now.cell.state, plan);
        kv::apply(now.exec, kv::overwrite{}, plan, all, *now.cell.state);
        before = now.lanes();
        kv::cache in = part_of(all, v);
        kv::restore_order(now.exec, in, *now.cell.state);
      };
      restored(whole, view::whole, orders[0]);
      restored(some, part, orders[1]);
      std::vector<byte_image> const after = some.lanes(), expected = whole.lanes();
      for (std::size_t i = 0; i < after.size(); ++i) {
        bool const mine = is_in(part, some.cell.mock.lane_at(static_cast<int>(i)));
        CHECK(after[i] == (mine ? expected[i] : before[i]));
        CHECK(orders[1][i].ascends() == (mine || orders[1][i] == kv::lane_order{}));
      }
      CHECK(before != after);

      cache_world now(false, false);  // only slot 0 is short
      for (int slot = 1; slot < world::slots; ++slot) now.truncate(view::whole, slot, slot == 1 ? 10 : 3);
      CHECK(kv::due(now.policy, part_of(now.cell.all, part)));
      now.truncate(view::whole, 1, 3);
      now.step_one(0, 12);
      CHECK(kv::due(now.policy, part_of(now.cell.all, part)) == (part == view::layers));
    }
  }

  TEST_CASE("promote, ingest and a step of a part are about its sequences alone") {
    for (view const part : parts) {
      may const all = part == view::layers ? may::only_refuse : may::not_refuse;
      for (bool const ragged : {true, false}) {
        auto const both = [&](std::string const& name, std::function<void(dual_world&, view)> const& call) {
          law(
              name, kind::dual, part, all, [&](world& now, view v) { call(dynamic_cast<dual_world&>(now), v); },
              ragged);
        };
        both("promote", [](dual_world& now, view v) { now.promote(v, in_order(v, {0, 1, 3, 2})); });
        both("promote for one number of tokens", [](dual_world& now, view v) {
          kv::dual_cache in = part_of(now.all, v);
          kv::promote(now.exec, now.admit, kv::signals{in.window.lanes}, in, now.state, now.exits, 2);
        });
        both("promote, append and observe", [](dual_world& now, view v) {
          now.promote(v, in_order(v, {0, 2, 0, 2}));
          now.append(v, {sequence_in(v, 1), 2, now.length[1]});
          now.observe(v, 1);
        });
        both("ingest", [](dual_world& now, view v) {
          now.bring_chunk({0, 7, 3, 9}, v);
          now.ingest(v);
        });
        both("a step", [](dual_world& now, view v) { now.step_of_library(v, 1, 2); });
        both("release_pages", [](dual_world& now, view v) {
          now.decide(v, 0);
          kv::dual_cache in = part_of(now.all, v == view::layers ? view::whole : v);
          if (v == view::layers) throw kv::invalid_argument("the window is not asked");
          kv::apply(now.exec, kv::compact{}, *now.plans[0], in.pages.entries, now.state.pages);
          kv::ops::release_pages(now.exec, in.pages);
        });
      }
    }
  }

  TEST_CASE("tokens of promote are numbered as the sequences of the part") {
    dual_world now;
    byte_image const before = now.image();
    for (view const part : {view::sequences, view::list}) {
      for (std::vector<int> const& tokens : {std::vector{1}, {1, 1, 1}, {1, 1, 1, 1}, {}}) {
        CHECK(error_of([&] { now.promote(part, tokens); }).starts_with("promote: tokens = "));
        CHECK(now.image() == before);
      }
    }
  }

  TEST_CASE("pages that are selected for a part are those of its lanes in the whole") {
    mock_options shape = cache_world::cell_type::shape_of(false, 2, 2, 0);
    mock_cache cache(shape);
    mock_queries queries(cache, kv::codec::f32, 1, 1);
    fill(cache, true);
    fill_current(queries, cache, content::smooth);
    kv::selection<kv::quest> const policy{.score = {.page = 4}, .budget = {8}, .dense_layers = 0};
    kv::host_executor exec;
    auto state = kv::make_state(exec, policy, cache.view());
    kv::lanes const all = cache.lanes();
    kv::observe(exec, policy, kv::signals{all, kv::keys_of(cache.view()), kv::queries{queries.view()}}, state);
    auto plan = kv::make_plan(exec, policy, cache.view());
    kv::select_pages(exec, policy, kv::signals{all, kv::queries{queries.view()}}, state, plan);
    std::vector<std::vector<int>> whole;
    for (int i = 0; i < all.size(); ++i) whole.push_back(listed(plan.keep(), i));
    for (view const part : parts) {
      kv::lanes const some = part_of(all, part);
      kv::queries rows{queries.view()};
      if (part == view::list) rows = kv::only(rows, the_list);
      kv::select_pages(exec, policy, kv::signals{some, rows}, state, plan);
      for (int i = 0; i < some.size(); ++i) {
        kv::lane one = some.at(i);
        one.sequence = kv::slot_of(some.slots, one.sequence);
        CHECK(listed(plan.keep(), i) == whole[as_size(all.index(one))]);
      }
    }
  }

  TEST_CASE("the arrays of kernels are those of the sequences of the part") {
    for (bool const of_heads : {false, true}) {
      cache_world now(true);
      if (!of_heads) {  // one table describes heads that hold the same
        for (int slot = 1; slot < world::slots; ++slot) now.truncate(view::whole, slot, 0);
        for (int slot = 0; slot < world::slots; ++slot) now.append(view::whole, {slot, 3 + 4 * slot, 0});
      }
      auto const written = [&](kv::cache const& in) {  // the pages of each sequence, with its lengths
        std::vector<std::vector<int>> made;
        auto const n = as_size(in.lanes.sequences);
        std::vector<std::int32_t> indptr(n + 1), indices(100), last(n), tables(2 * n * 6), lengths(2 * n);
        if (of_heads) {
          kv::engines::write_head_tables(in, 1, {tables.data(), lengths.data(), 6, -1});
        } else {
          kv::engines::write_page_arrays(in, 1, {indptr, indices, last});
        }
        for (std::size_t s = 0; s < n; ++s) {
          std::vector<int>& one = made.emplace_back();
          if (!of_heads) {
            one.assign(indices.begin() + indptr[s], indices.begin() + indptr[s + 1]);
            one.push_back(last[s]);
          }
          for (std::size_t head = 0; of_heads && head < 2; ++head) {
            auto const row = tables.begin() + static_cast<std::ptrdiff_t>((head * n + s) * 6);
            one.insert(one.end(), row, row + 6);
            one.push_back(lengths[head * n + s]);
          }
        }
        return made;
      };
      auto const whole = written(now.cell.all);
      CHECK(whole[1] != whole[3]);
      CHECK(written(part_of(now.cell.all, view::sequences)) == std::vector{whole[1], whole[2]});
      CHECK(written(part_of(now.cell.all, view::layers)) == whole);
      CHECK(written(part_of(now.cell.all, view::list)) == std::vector{whole[3], whole[1]});
    }
  }
}

}  // namespace parts_laws_test
