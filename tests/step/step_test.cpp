// SPDX-License-Identifier: Apache-2.0
// Admission, selection and eviction in one step: what they leave is what each by itself says, in the order written.

#include "support/stepping.hpp"

namespace {

using namespace kvpolicy_test;

/// What pages hold by definition: gates at the window's exit, then the lowest (t - p) log beta goes, t the newest.
std::vector<std::vector<int>> expected(int length, int window, float threshold, int budget) {
  std::vector<std::vector<int>> lanes(4);
  for (int t = 0; t < length; ++t) {
    for (int i = 0; i < 4; ++i) {
      std::vector<int>& mine = lanes[as_size(i)];
      int const leaves = t - window;
      if (leaves >= 0 && gate_of(i, leaves) >= threshold) mine.push_back(leaves);
      while (std::ssize(mine) > budget) {
        int const newest = mine.back();
        auto const score = [&](int p) { return static_cast<float>(newest - p) * log_beta_of(i, p); };
        // Ties keep the lower ordinal: the last of the lowest goes.
        auto worst = mine.begin();
        for (auto at = mine.begin(); at != mine.end(); ++at) worst = score(*at) <= score(*worst) ? at : worst;
        mine.erase(worst);
      }
    }
  }
  return lanes;
}

auto const admit = kv::policies::wg_kv({.window = 6, .threshold = 0.4f});
auto const choose = kv::selection{.score = kv::quest{.page = 4}, .budget = kv::per_lane{12}, .dense_layers = 1};
auto const drop = kv::policies::trim_kv({.budget = 20});

TEST_SUITE("step") {
  TEST_CASE("the triple: pages hold what gates admit and retention keeps; no more is read than the budget") {
    stepping now(kv::cache_policy{.admit = admit, .select = choose, .evict = drop});
    for (int t = 0; t < 150; ++t) {
      now.step();
      auto const want = expected(now.length, 6, 0.4f, 20);
      for (int i = 0; i < 4; ++i) {
        REQUIRE(now.pages_of(i) == want[as_size(i)]);
        kv::lane const this_lane = now.both.window.lanes.at(i);
        for (int e = 0; e < std::ssize(want[as_size(i)]); ++e) {
          REQUIRE(dual_engine::true_rows(now.both.pages.entries, this_lane, e));
        }
      }
      REQUIRE(now.engine.held_pages() + now.engine.free_pages() == 400);
    }
    for (int i = 0; i < 4; ++i) {
      std::vector<int> const& pages = now.read[as_size(i)];
      CHECK(pages.size() == (i < 2 ? as_size(pages.back()) + 1 : 3u));  // layer 0 is dense
      CHECK(pages.back() >= 4);
    }
    CHECK(now.told.evicted.logical_kept == 80);
    CHECK(kv::to_string(now.policy).starts_with("admit: write_gate | at_least(least=0.4"));
    CHECK(kv::to_string(kv::eviction<kv::full, kv::nothing, kv::lowest_part, kv::top, kv::over_total>{}) ==
          "full | lowest(0.1) | over_total(1048576)");
  }

  TEST_CASE("bounds are those of pages made from scratch, whatever was promoted and evicted") {
    stepping now(kv::cache_policy{.admit = admit, .select = choose, .evict = drop});
    for (int t = 0; t < 80; ++t) {
      now.step();
      kv::cache const& pages = now.both.pages.entries;
      auto fresh = kv::make_state(now.exec, choose, pages);
      kv::observe(now.exec, choose, kv::signals{pages.lanes, kv::keys_of(pages)}, fresh);
      kv::page_bounds const made = kv::record_page_bounds{4}.view(fresh.columns_from(0));
      kv::page_bounds const kept = kv::record_page_bounds{4}.view(now.held.pages.columns_from(1));  // behind log beta
      for (int i = 0; i < 4; ++i) {
        kv::lane const this_lane = pages.lanes.at(i);
        int const covered = (*pages.lanes.count.row(this_lane) + 3) / 4;
        auto const* const a = reinterpret_cast<float const*>(made.rows.row(this_lane));
        auto const* const b = reinterpret_cast<float const*>(kept.rows.row(this_lane));
        REQUIRE(std::equal(a, a + covered * 8, b));
      }
    }
  }

  TEST_CASE("parts may be left out") {
    stepping alone(kv::cache_policy{.admit = admit});
    stepping kept(kv::cache_policy{.admit = admit, .evict = drop});
    stepping chosen(kv::cache_policy{.admit = admit, .select = choose});
    for (int t = 0; t < 60; ++t) {
      alone.step();
      kept.step();
      chosen.step();
      auto const all = expected(alone.length, 6, 0.4f, 1 << 20);
      auto const some = expected(alone.length, 6, 0.4f, 20);
      for (int i = 0; i < 4; ++i) {
        REQUIRE(alone.pages_of(i) == all[as_size(i)]);
        REQUIRE(chosen.pages_of(i) == all[as_size(i)]);
        REQUIRE(kept.pages_of(i) == some[as_size(i)]);
      }
    }
  }

  TEST_CASE("selection and eviction without a window: observe, evict, refresh") {
    auto const policy = kv::cache_policy{.select = choose, .evict = drop};
    step_without_window(policy, [](int t, kv::cache const& all, auto const& held) {
      for (int i = 0; i < 4; ++i) {
        kv::lane const this_lane = all.lanes.at(i);
        REQUIRE(*all.lanes.count.row(this_lane) == std::min(t + 1, 20));
        REQUIRE(*held.columns().back().rows.row(this_lane) == static_cast<std::byte>(std::min(t + 1, 20)));  // known
      }
    });
  }

  TEST_CASE("a step allocates nothing") {
    stepping now(kv::cache_policy{.admit = admit, .select = choose, .evict = drop});
    for (int t = 0; t < 40; ++t) now.step();
    now.lists_read = false;
    CHECK(allocations_in([&] { now.step(); }) == 0);
  }

  TEST_CASE("a step that is refused has changed nothing") {
    stepping now(kv::cache_policy{.admit = admit, .select = choose, .evict = drop});
    for (int t = 0; t < 30; ++t) now.step();
    auto const seen = dual_engine::seen(now.both, {});
    bool ran = false;
    auto const refused = [&](auto const& policy, kv::append_request const& new_tokens) {
      return error_of([&] {
        kv::step(now.exec, policy, kv::signals{now.both.window.lanes}, now.both, now.held, now.plans, new_tokens,
                 [&] { ran = true; });
      });
    };
    CHECK(refused(now.policy, {.tokens = 1, .position = 29}) ==
          "step: position = 29, but positions ascend and the last is 29");
    CHECK(refused(now.policy, {.sequence = 1, .tokens = 1, .position = 30}) ==
          "step: sequence = 1, but the batch has 1 sequences");
    CHECK(refused(now.policy, {.tokens = 7, .position = 30}) ==
          "step: tokens = 7, but the window has 6 rows: ingest takes longer chunks");
    CHECK(refused(now.policy, {.tokens = 3, .position = 30, .in_flight = true}) ==
          "step: tokens = 3, but the ring has 2 rows for drafts");
    auto broken = now.policy;
    broken.evict.budget.tokens = -1;
    CHECK(refused(broken, {.tokens = 1, .position = 30}) == "step: budget.tokens = -1, but a count cannot be negative");
    broken = now.policy;
    broken.admit.window = 9;
    CHECK(refused(broken, {.tokens = 1, .position = 30}) == "step: admission.window = 9, but the ring has 8 rows");
    CHECK_FALSE(ran);
    CHECK(dual_engine::seen(now.both, {}) == seen);
    now.step();
    CHECK(now.length == 31);
  }

  TEST_CASE("drafts push nothing out of the window") {
    stepping now(kv::cache_policy{.admit = admit});
    for (int t = 0; t < 20; ++t) now.step();
    auto const seen = dual_engine::seen(now.both, {});
    kv::step(now.exec, now.policy, kv::signals{now.both.window.lanes}, now.both, now.held, now.plans,
             {.tokens = 2, .position = 20, .in_flight = true}, [] {});
    kv::truncate(now.exec, now.both, now.held, 0, 20);
    CHECK(dual_engine::seen(now.both, {}) == seen);
  }

  TEST_CASE("a roll-back reaches the pages, too") {
    stepping now(kv::cache_policy{.admit = admit, .select = choose});
    for (int t = 0; t < 30; ++t) now.step();
    kv::truncate(now.exec, now.both, now.held, 0, 10);
    for (int i = 0; i < 4; ++i) {
      auto const left = dual_engine::seen(now.both, now.both.window.lanes.at(i));
      CHECK((left.empty() || left.back() < 10));
    }
    CHECK(now.engine.held_pages() + now.engine.free_pages() == 400);
    now.length = 10;
    for (int t = 0; t < 10; ++t) now.step();
    CHECK(dual_engine::seen(now.both, {}).back() == 19);
  }

  TEST_CASE("WG-KV's eviction: the lowest tenth of every lane, when all of them are too many") {
    auto const policy = kv::eviction{.score = kv::admitted_attention{.window = 2, .pool = kv::max_pool{1}},
                                     .protect = kv::nothing{},
                                     .budget = kv::lowest_part{0.1},
                                     .pick = kv::top{},
                                     .trigger = kv::over_total{99}};
    dual_engine engine({.rows = 4, .page = 4, .pages = 200, .bound = 64});
    kv::host_executor exec;
    kv::dual_cache both = engine.view();
    kv::cache& pages = both.pages.entries;
    auto [held, plan] = state_and_plan(exec, policy, pages);
    std::vector<float> query(2 * 4 * 2 * 4, 1e-3f);
    std::vector<int> const position{1000, 1001};
    kv::recent_queries rows;
    rows.base = reinterpret_cast<std::byte const*>(query.data());
    rows.dims = 4;
    rows.heads = 4;
    rows.rows = 2;
    rows.row = 16;
    rows.head = 32;
    rows.layer = 128;
    rows.position = {position.data(), 0, 0, 0};
    for (int const total : {99, 100}) {
      int const counts[] = {29, 30, 15, total - 74};
      for (int i = 0; i < 4; ++i) {
        kv::lane const this_lane = pages.lanes.at(i);
        *pages.lanes.count.row(this_lane) = counts[i];
        std::iota(pages.lanes.position.row(this_lane), pages.lanes.position.row(this_lane) + counts[i], 0);
        for (int page = 0; page < 16; ++page) both.pages.table.row(this_lane)[page] = 4 + i * 16 + page;
        for (int e = 0; e < counts[i]; ++e) dual_engine::write(pages, this_lane, e, e);
      }
      kv::decide(exec, policy, kv::signals{pages.lanes, kv::keys_of(pages), rows}, held, plan);
      for (int i = 0; i < 4; ++i) {
        int const dropped = total > 99 ? counts[i] / 10 : 0;
        CHECK(std::ssize(plan.keep().listed(i)) == counts[i] - dropped);
        CHECK(plan.keep().listed(i).front() == dropped);  // keys grow with positions, and so does attention
      }
      // What an engine knows of its rows' sums is over the window, too, and does not count here.
      float const before = plan.score(0, 20);
      std::vector<float> const sums(16, 30.0f);
      kv::recent_queries told = rows;
      told.lse = {sums.data(), 0, 8, 2};
      kv::decide(exec, policy, kv::signals{pages.lanes, kv::keys_of(pages), told}, held, plan);
      CHECK(plan.score(0, 20) == before);
    }
  }
}

}  // namespace
