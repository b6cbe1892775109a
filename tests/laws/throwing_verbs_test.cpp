// SPDX-License-Identifier: Apache-2.0
// What a functor that throws leaves behind where no plan is: scores and keep sets that a caller handed to a verb, the
// lists of an applier that asks whose slots are shared, and the choice of a selection.

#include "layout/slot_cache.hpp"
#include "support/test.hpp"

namespace throwing_verbs_test {

using namespace kvpolicy_test;

/// No standard exception.
struct blown {};

template <class Call>
bool blows(Call const& call) {
  try {
    call();
  } catch (blown const&) {
    return true;
  }
  return false;
}

/// Four lanes of ten entries.
struct four_lanes {
  four_lanes() {
    for (int i = 0; i < 4; ++i) cache.put(cache.lane_at(i), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  }
  mock_cache cache{{.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .bound = 12}};
};

/// Where a functor throws: entry `ordinal` of lane (0, layer, head).
struct place_of_throw {
  int layer;
  int head;
  int ordinal;
  [[nodiscard]] bool is(kv::entry const& at) const {
    return at.lane.layer == layer && at.lane.head == head && at.ordinal == ordinal;
  }
  [[nodiscard]] int segment() const { return 2 * layer + head; }
};
constexpr place_of_throw places[] = {{0, 0, 0}, {1, 0, 5}, {1, 1, 9}};

/// Adds one; or throws.
struct add_one {
  place_of_throw where;
  float operator()(float old, kv::entry at) const {
    if (where.is(at)) throw blown{};
    return old + 1.0f;
  }
};

/// Keeps five entries, the third among them; or throws.
struct throwing_rule {
  place_of_throw where;
  [[nodiscard]] static int budget(kv::lane, int) { return 5; }
  [[nodiscard]] static bool triggers(int, int) { return true; }
  [[nodiscard]] bool forces(kv::entry at) const {
    if (where.is(at)) throw blown{};
    return at.ordinal == 2;
  }
  [[nodiscard]] static bool picks(float score) { return score > 0.5f; }
};

/// A keep set after a throw: in bounds wherever it is read, and of no cache.
void lists_nothing(kv::host_executor& exec, owned_keep& keep) {
  for (int segment = 0; segment < 4; ++segment) {
    CHECK(keep.kept(segment).empty());
    CHECK(keep.view().entry_count[segment] == -1);
  }
  CHECK(keep.report() == kv::report{});
  CHECK(!error_of([&] { kv::ops::refuse_stale(exec, keep.view().lanes, keep.view()); }).empty());
}

/// Every slot is its sequence's own; or the question throws.
struct throwing_owner {
  int const* bad = nullptr;
  bool operator()(int slot) const {
    if (slot == *bad) throw blown{};
    return false;
  }
};

/// As many tokens for each lane; or none at all.
struct throwing_tokens {
  kv::lane const* bad = nullptr;
  int operator()(kv::lane this_lane, int) const {
    if (bad != nullptr && this_lane == *bad) throw blown{};
    return 8;
  }
  friend bool operator==(throwing_tokens const&, throwing_tokens const&) = default;
};

TEST_SUITE("laws/throwing") {
  TEST_CASE(
      "what map's function throws arrives; entries before it have new scores, the one itself and those behind it old "
      "ones") {
    four_lanes of;
    for (int const threads : {1, 3}) {
      kv::host_executor exec(threads);
      for (place_of_throw const& where : places) {
        owned_scores scores(of.cache.lanes());
        CHECK(blows([&] { kv::ops::map(exec, scores.view(), add_one{where}); }));
        for (int segment = 0; segment < 4; ++segment) {
          auto const row = scores.row(segment, 10);
          int const num_new_tokens = static_cast<int>(std::count(row.begin(), row.end(), 1.5f));
          for (int e = 0; e < 10; ++e) CHECK(row[as_size(e)] == (e < num_new_tokens ? 1.5f : 0.5f));
          if (segment == where.segment()) CHECK(num_new_tokens == where.ordinal);
          if (segment < where.segment()) CHECK(num_new_tokens == 10);
          if (threads == 1 && segment > where.segment()) CHECK(num_new_tokens == 0);
        }
        CHECK(std::all_of(scores.all().begin(), scores.all().end(), [](float v) { return v == 0.5f || v == 1.5f; }));
      }
    }
  }

  TEST_CASE("what a rule throws in top_k, select_if and argmin leaves scores as they were and a keep set of nothing") {
    four_lanes of;
    for (int const threads : {1, 3}) {
      kv::host_executor exec(threads);
      exec.reserve(1 << 16);
      for (place_of_throw const& where : places) {
        owned_scores scores(of.cache.lanes());
        auto const before = scores.all();
        owned_keep kept(scores.view()), picked(scores.view()), dropped(scores.view());
        dropped.view().lists = kv::side::dropped;
        throwing_rule const good{{9, 9, 9}};
        kv::ops::top_k(exec, scores.view(), good, kept.view());
        kv::ops::select_if(exec, scores.view(), good, picked.view());
        kv::ops::argmin(exec, scores.view(), good, dropped.view());
        CHECK(kept.kept(3).size() == 5);
        CHECK(picked.kept(3) == std::vector<int>{2});
        CHECK(dropped.kept(3) == std::vector<int>{9});
        CHECK(blows([&] { kv::ops::top_k(exec, scores.view(), throwing_rule{where}, kept.view()); }));
        CHECK(blows([&] { kv::ops::select_if(exec, scores.view(), throwing_rule{where}, picked.view()); }));
        CHECK(blows([&] { kv::ops::argmin(exec, scores.view(), throwing_rule{where}, dropped.view()); }));
        for (owned_keep* const each : {&kept, &picked, &dropped}) lists_nothing(exec, *each);
        CHECK(scores.all() == before);
      }
    }
  }

  TEST_CASE(
      "what the question for shared slots throws leaves cache, lists and state as they were, and the decision stands") {
    for (int const threads : {1, 3}) {
      for (bool const redirects : {false, true}) {
        for (int const lane : {0, 1, 3}) {
          slot_cache cache(
              {.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4}, .bound = 16, .by_lane = true});
          kv::host_executor exec(threads);
          kv::cache view = cache.view();
          kv::eviction<kv::knorm> const policy{.budget = {4}};
          auto [state, plan] = state_and_plan(exec, policy, view);
          for (int t = 0; t < 12; ++t) {
            cache.write_token(0, t, t);
            kv::append(exec, view, state, {.sequence = 0, .tokens = 1, .position = t});
          }
          kv::decide(exec, policy, kv::signals{view.lanes, kv::keys_of(view)}, state, plan);
          kv::lane const this_lane = view.lanes.at(lane);
          std::vector<int> const slots = cache.listed(this_lane);
          std::vector<int> dropped;
          for (int e = 0; e < 12; ++e) {
            auto const kept = plan.keep().listed(lane);
            if (std::find(kept.begin(), kept.end(), e) == kept.end()) {
              dropped.push_back(slots[as_size(e)]);
            }
          }
          REQUIRE(dropped.size() == 8);
          auto const before = cache.save();
          kv::apply_stats stats{1, 2, 3};
          int bad = -1;
          auto const apply = [&] {
            if (redirects) {
              auto const like = cache.redirecting();
              kv::dead_slot<throwing_owner> const how{.list = like.list,
                                                      .map = like.map,
                                                      .dead = like.dead,
                                                      .protected_prefix = like.protected_prefix,
                                                      .locked_prefix = like.locked_prefix,
                                                      .shared = {&bad},
                                                      .freed = like.freed,
                                                      .released = like.released};
              kv::apply(exec, how, plan, view, state, &stats);
            } else {
              kv::list_rewrite<throwing_owner> const how{
                  .list = cache.list_table(), .freed = cache.freed_list(), .shared = {&bad}};
              kv::apply(exec, how, plan, view, state, &stats);
            }
          };
          for (std::size_t const which : {0u, 3u, 7u}) {
            bad = dropped[which];
            CHECK(blows(apply));
            CHECK(cache.save() == before);
            CHECK(stats == kv::apply_stats{1, 2, 3});
            CHECK(plan.decided());
          }
          bad = -1;
          apply();
          CHECK(cache.held(this_lane) == 4);
          CHECK(stats.physical_freed == 32);
        }
      }
    }
  }

  TEST_CASE("what a selection's budget throws arrives, and the plan holds no choice until the next") {
    for (int const threads : {1, 3}) {
      mock_cache cache({.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .bound = 32});
      for (int i = 0; i < 4; ++i) {
        cache.put(cache.lane_at(i), up_to(20 + i));
      }
      current_queries queries(cache, kv::codec::f32, 1, 1);
      kv::host_executor exec(threads);
      kv::lane bad{9, 9, 9};
      kv::selection<kv::quest, throwing_tokens> const policy{.score = {.page = 4}, .budget = {&bad}, .dense_layers = 0};
      auto [state, plan] = state_and_plan(exec, policy, cache.view());
      kv::signals const in{cache.lanes(), kv::keys_of(cache.view()), kv::queries{queries.view()}};
      kv::observe(exec, policy, in, state);
      auto const lists = [&] {
        std::vector<std::vector<int>> all;
        for (int i = 0; i < 4; ++i) all.push_back(listed(plan.keep(), i));
        return all;
      };
      auto const refused = [&](std::string const& since) {
        CHECK(!plan.decided());
        CHECK(plan.keep().indices == nullptr);
        CHECK(error_of([&] { (void)plan.report(); }) ==
              "report: plan = empty" + since + ", but select comes before report");
        CHECK(error_of([&] { (void)plan.score(0, 0); }) ==
              "score: plan = empty" + since + ", but select comes before score");
      };
      refused("");
      kv::select_pages(exec, policy, in, state, plan);
      auto const good = lists();
      auto const before = cache.save();
      CHECK(plan.report().triggered == 4);
      for (kv::lane const this_lane : {kv::lane{0, 0, 0}, kv::lane{0, 1, 0}, kv::lane{0, 1, 1}}) {
        bad = this_lane;
        CHECK(blows([&] { kv::select_pages(exec, policy, in, state, plan); }));
        refused(" since its last decision did not finish");
        CHECK(cache.save() == before);
        bad = {9, 9, 9};
        kv::select_pages(exec, policy, in, state, plan);
        CHECK(lists() == good);
        CHECK(plan.report().triggered == 4);
      }
    }
  }
}

}  // namespace throwing_verbs_test
