// SPDX-License-Identifier: Apache-2.0
// select: what a lane reads, given its pages' scores; and what is refused.

#include "reference/pages.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;
using quest_policy = kv::selection<kv::quest>;

/// A cache, the rows that ask, and a selection over it.
struct reading {
  reading(mock_options const& shape, quest_policy how, int rows = 1)
      : cache(shape),
        queries(cache, kv::codec::f32, rows, rows),
        policy(how),
        state(kv::make_state(exec, policy, cache.view())),
        plan(kv::make_plan(exec, policy, cache.view())) {}

  [[nodiscard]] auto in() { return kv::signals{cache.lanes(), kv::keys_of(cache.view()), kv::queries{queries.view()}}; }
  void select() {
    kv::observe(exec, policy, in(), state);
    kv::select_pages(exec, policy, in(), state, plan);
  }
  [[nodiscard]] std::vector<int> chosen(int lane) { return listed(plan.keep(), lane); }

  kv::host_executor exec;
  mock_cache cache;
  mock_queries queries;
  quest_policy policy;
  kv::state<kv::host_executor> state;
  kv::selection_plan<kv::host_executor> plan;
};

mock_options two_channels(int entries) {
  mock_options shape;
  shape.model.head_dim = 2;
  shape.bound = entries;
  return shape;
}

/// A lane of random keys with 9 entries in pages of 4, and one row that asks; the only layer is dense.
struct nine_entries : reading {
  nine_entries() : reading(two_channels(16), {.score = {.page = 4}, .budget = {4}}) {
    cache.put({}, {0, 1, 2, 3, 4, 5, 6, 7, 8});
    fill_current(queries, cache, content::smooth);
  }
};

void decide_as_the_reference(reading& now, mock_options const& shape) {
  for (int i = 0; i < now.cache.lane_count(); ++i) {
    kv::lane const this_lane = now.cache.lane_at(i);
    int const pages = reference::pages_of(now.cache.committed(this_lane), now.policy.score.page);
    bool const dense = this_lane.layer < now.policy.dense_layers;
    reference::row scores(as_size(pages));
    for (int p = 0; p < pages && !dense; ++p) {
      scores[as_size(p)] = static_cast<double>(now.plan.score(i, p));
    }
    RC_LOG() << "lane " << i << " of " << pages << " pages\n";
    RC_ASSERT(now.chosen(i) == reference::quest_pages(scores, now.policy.score.page, now.policy.budget.tokens, dense));
  }
  RC_ASSERT(now.plan.report().forced_over_budget == 0);
  RC_ASSERT(now.plan.keep().items == kv::item::page);
  RC_ASSERT(now.plan.keep().segments() == shape.sequences * shape.model.layers * shape.model.kv_heads);
}

TEST_SUITE("selection/select") {
  TEST_CASE("the page whose bound is highest is read, though another holds as good a key") {
    reading now(two_channels(6), {.score = {.page = 2}, .budget = {4}, .dense_layers = 0});
    now.cache.put({}, {0, 1, 2, 3, 4});
    reference::matrix const keys{{1, -1}, {0, 2}, {-2, 0}, {3, 1}, {0, 0}};
    for (int e = 0; e < 5; ++e) now.cache.write(of::keys, {}, e, keys[as_size(e)]);
    now.queries.write(0, 0, 0, 0, {1, -1});
    now.select();
    CHECK((now.plan.score(0, 0) == 2));
    CHECK((now.plan.score(0, 1) == 3));
    CHECK(now.chosen(0) == std::vector{1, 2});
  }

  TEST_CASE("a lane reads the best pages and its last, a dense layer all") {
    holds("quest's pages", [] {
      mock_options shape = any_mock(6);
      shape.rows = *rc::gen::element(content::smooth, content::few, content::troubled);
      int const page = *rc::gen::element(4, 16, 1, 3);
      int const tokens = *rc::gen::element(shape.bound / 2, 0, 1, page, 2 * page + 1, shape.bound);
      int const dense = *rc::gen::element(0, 1, 2);
      reading now(shape, {.score = {.page = page}, .budget = {tokens}, .dense_layers = dense});
      fill(now.cache, true);
      fill_current(now.queries, now.cache, content::few);
      now.select();
      decide_as_the_reference(now, shape);
      kv::lanes const all = now.cache.lanes();
      std::vector<std::vector<int>> together;
      for (int i = 0; i < all.size(); ++i) together.push_back(now.chosen(i));
      for (int layer = 0; layer < all.layer_end; ++layer) {
        kv::signals const in{all.layers_only(layer, layer + 1), kv::queries{now.queries.view()}};
        auto apart = kv::make_plan(now.exec, now.policy, now.cache.view());  // without the scores of all together
        kv::select_pages(now.exec, now.policy, in, now.state, apart);
        for (int i = 0; i < in.lanes.size(); ++i) {
          RC_ASSERT(listed(apart.keep(), i) == together[as_size(all.index(in.lanes.at(i)))]);
        }
      }
    });
  }

  TEST_CASE("with pages of one entry the best logits are read") {
    holds("page 1 is exact top-k", [] {
      mock_options shape = two_channels(40);
      shape.model.query_heads = *rc::gen::element(1, 4);
      shape.model.head_dim = *rc::gen::element(3, 8);
      shape.rows = content::few;  // whole numbers: sums are exact, and ties are many
      shape.seed = any_seed();
      reading now(shape, {.score = {.page = 1}, .budget = {*rc::gen::inRange(1, 41)}, .dense_layers = 0});
      fill(now.cache, false);
      fill_current(now.queries, now.cache, content::few);
      now.select();
      reference::row best;
      for (reference::row const& key : now.cache.rows(of::keys, {}, now.cache.committed({}))) {
        best.push_back(-reference::infinity);
        for (int h = 0; h < shape.model.query_heads; ++h) {
          best.back() = std::max(best.back(), reference::dot(now.queries.row(0, 0, h, 0), key));
        }
      }
      RC_ASSERT(now.chosen(0) == reference::quest_pages(best, 1, now.policy.budget.tokens));
    });
  }

  TEST_CASE("pages with a protected entry are read, whatever protection says so") {
    holds("protected pages", [] {
      mock_options shape = any_mock(6);
      shape.rows = content::smooth;
      int const page = *rc::gen::element(4, 16, 1, 3);
      int const tokens = *rc::gen::element(shape.bound / 2, 0, page, shape.bound);
      int const dense = *rc::gen::element(0, 1);
      int const first = *rc::gen::element(0, 1, 5, 100);
      int const last = *rc::gen::element(0, 1, page, 100);
      reading now(shape, {.score = {.page = page}, .budget = {tokens}, .dense_layers = dense});
      fill(now.cache, true);
      fill_current(now.queries, now.cache, content::few);
      now.select();
      kv::lanes const all = now.cache.lanes();
      auto const check = [&](auto const& protect) {
        kv::selection const policy{now.policy.score, now.policy.budget, dense, protect};
        auto plan = kv::make_plan(now.exec, policy, now.cache.view());
        kv::select_pages(now.exec, policy, now.in(), now.state, plan);
        for (int i = 0; i < all.size(); ++i) {
          kv::lane const one = all.at(i);
          int const count = all.committed(one);
          int const pages = reference::pages_of(count, page);
          std::vector<bool> forced(as_size(pages));
          for (int e = 0; e < count; ++e) {
            kv::entry const at{one, e, count, all.position.row(one)[e], 0};
            if (protect(at) || e / page == pages - 1) forced[as_size(e / page)] = true;
          }
          std::vector<std::pair<float, int>> order;
          int places = std::max(1, tokens / page);
          for (int p = 0; p < pages; ++p) {
            if (forced[as_size(p)])
              --places;
            else if (one.layer >= dense)
              order.emplace_back(-plan.score(i, p), p);
          }
          bool const whole = one.layer < dense || pages <= std::max(1, tokens / page);
          std::sort(order.begin(), order.end());
          for (int k = 0; k < std::min<int>(places, static_cast<int>(order.size())); ++k) {
            forced[as_size(order[as_size(k)].second)] = true;
          }
          std::vector<int> expected;
          for (int p = 0; p < pages; ++p) {
            if (whole || forced[as_size(p)]) expected.push_back(p);
          }
          RC_ASSERT(listed(plan.keep(), i) == expected);
        }
      };
      check(kv::safe{first, last});
      check(kv::sinks{first});
      check(kv::position_span{first, first + last});
      check(kv::any_protection(kv::safe{first, last}));
    });
  }

  TEST_CASE("with a threshold a lane reads every page that reaches it, its last and all of a dense layer") {
    reading now(two_channels(8), {.score = {.page = 2}, .budget = {4}, .dense_layers = 0});
    now.cache.put({}, {0, 1, 2, 3, 4, 5, 6});
    reference::matrix const keys{{1, -1}, {0, 2}, {-2, 0}, {3, 1}, {0, 0}, {9, 0}, {0, 0}};
    for (int e = 0; e < 7; ++e) now.cache.write(of::keys, {}, e, keys[as_size(e)]);
    now.queries.write(0, 0, 0, 0, {1, -1});
    now.select();
    auto const pages = [&](float least, int dense, auto const& protect) {
      kv::selection const policy{.score = kv::quest{.page = 2},
                                 .budget = kv::unlimited{},
                                 .dense_layers = dense,
                                 .protect = protect,
                                 .pick = kv::at_least{.least = least, .unbounded = true}};
      auto plan = kv::make_plan(now.exec, policy, now.cache.view());
      kv::select_pages(now.exec, policy, now.in(), now.state, plan);
      kv::basic_any_selection<kv::host_executor> const erased = policy;
      auto same = kv::make_plan(now.exec, erased, now.cache.view());
      kv::select_pages(now.exec, erased, now.in(), now.state, same);
      CHECK(listed(plan.keep(), 0) == listed(same.keep(), 0));
      return listed(plan.keep(), 0);
    };
    CHECK(pages(3, 0, kv::nothing{}) == std::vector{1, 2, 3});  // the bounds are 2, 3 and 9
    CHECK(pages(3.5f, 0, kv::nothing{}) == std::vector{2, 3});
    CHECK(pages(100, 0, kv::nothing{}) == std::vector{3});
    CHECK(pages(100, 1, kv::nothing{}) == std::vector{0, 1, 2, 3});
    CHECK(pages(100, 0, kv::sinks{1}) == std::vector{0, 3});
    CHECK(pages(100, 0, kv::position_span{3, 4}) == std::vector{1, 3});
  }

  TEST_CASE("nothing allocates after the plan is made") {
    nine_entries now;
    CHECK(allocations_in([&] {
            now.select();
            now.cache.count({}) = 12;
            now.select();
          }) == 0);
    CHECK(now.plan.report().triggered == 0);
  }

  TEST_CASE("a selection prints its parts, and quest() is the paper's") {
    CHECK(kv::to_string(kv::policies::quest()) == "quest(page=16, group=max, bounds=f32) | budget(512) | dense(2)");
    CHECK(kv::policies::quest() == quest_policy{.budget = {512}});
  }

  TEST_CASE("what cannot be selected is refused") {
    nine_entries now;
    now.select();
    auto const refused = [&](quest_policy how) {
      return error_of([&] { kv::select_pages(now.exec, how, now.in(), now.state, now.plan); });
    };
    CHECK(refused({.score = {.page = 0}}) == "select: quest.page = 0, but a page holds at least one entry");
    CHECK(refused({.score = {.page = 4}, .budget = {-1}}) ==
          "select: budget.tokens = -1, but a count cannot be negative");
    CHECK(refused({.score = {.page = 4}, .dense_layers = -1}) ==
          "select: dense_layers = -1, but a count cannot be negative");
    CHECK(refused({.score = {.page = 2}}) == "select: plan.page = 4, but the policy reads pages of 2");
    CHECK(refused({.score = {.page = 4, .group = kv::reduction::last}}) ==
          "select: quest.group = last, but query heads have no order");
    CHECK(refused({.score = {.page = 4, .bounds = kv::codec::bf16}}) ==
          "select: state = another policy's, but make_state makes it for the policy that observes and decides");
    kv::host_executor bare;
    CHECK(error_of([&] { kv::select_pages(bare, now.policy, now.in(), now.state, now.plan); }) ==
          "select: exec = an executor without scratch for this batch, but plan and state are made on the executor that "
          "runs them");
    CHECK(now.chosen(0) == std::vector{0, 1, 2});  // a refused call changes nothing
  }

  TEST_CASE("bounds that an engine keeps are of the policy's pages") {
    nine_entries now;
    kv::page_bounds given = kv::record_page_bounds{4}.view(now.state.columns_from(0));
    given.page = 8;
    auto const refused = error_of([&] {
      kv::select_pages(now.exec, now.policy, kv::signals{now.cache.lanes(), kv::queries{now.queries.view()}, given},
                       now.state, now.plan);
    });
    CHECK(refused == "select: page_bounds.page = 8, but quest reads pages of 4");
  }

  TEST_CASE("a budget that lanes share is refused") {
    mock_cache cache(two_channels(4));
    kv::host_executor exec;
    kv::selection const policy{.score = kv::quest{}, .budget = kv::per_layer{8}};
    CHECK(error_of([&] { auto const plan = kv::make_plan(exec, policy, cache.view()); }) ==
          "make_plan: budget.scope = layer, but every lane reads for itself");
  }
}

}  // namespace
