// SPDX-License-Identifier: Apache-2.0
// Counts and drafts out of their limits are refused by every call and verb that reads them, before anything is written.

#include "laws/refusal.hpp"

namespace {

using namespace kvpolicy_test;

struct trouble_of_counts {
  int count;
  int drafts;
  std::string text;
};

std::string const at = " in layer 1, head 0 of sequence 1";
std::string const limits = at + ", but a lane holds 0 to 16 entries, its `capacity`";
constexpr int least = std::numeric_limits<int>::min();
constexpr int most = std::numeric_limits<int>::max();

/// What is wrong in lane (1, 1, 0).
std::vector<trouble_of_counts> const troubles = {
    {17, 0, "lanes.count = 17" + limits},
    {-1, 0, "lanes.count = -1" + limits},
    {most, 0, "lanes.count = 2147483647" + limits},
    {least, 1, "lanes.count = -2147483648" + limits},
    {10, 11,
     "lanes.in_flight = 11 in layer 0, head 0 of sequence 1, but a lane's drafts are among the 10 entries that it "
     "holds"},
    {10, -1,
     "lanes.in_flight = -1 in layer 0, head 0 of sequence 1, but a lane's drafts are among the 10 entries that it "
     "holds"},
    {3, 4, "lanes.in_flight = 4" + at + ", but a lane's drafts are among the 3 entries that it holds"},
};

/// Every trouble, in a batch of its own that is at work.
template <class Check>
void in_trouble(Check const& check) {
  for (trouble_of_counts const& each : troubles) {
    working_batch now;
    now.cache.count({1, 1, 0}) = each.count;
    now.cache.set_drafts(1, each.drafts);
    check(now, each.text);
  }
}

struct picking : kv::plain_top_k {
  [[nodiscard]] bool picks(float) const { return true; }
};

}  // namespace

TEST_SUITE("laws/refused_counts") {
  TEST_CASE("observe, decide and apply refuse counts and drafts that cannot be") {
    in_trouble([](working_batch& now, std::string const& text) {
      now.refuses("observe: " + text, [&] { kv::observe(now.exec, now.policy, now.signals(), now.state); });
      now.refuses("decide: " + text, [&] { kv::decide(now.exec, now.policy, now.signals(), now.state, now.plan); });
      now.refuses("apply: " + text, [&] { kv::apply(now.exec, kv::compact{}, now.plan, now.view, now.state); });
    });
  }

  TEST_CASE("append, commit and truncate refuse them in the sequence that they change, and see no other") {
    in_trouble([](working_batch& now, std::string const& text) {
      now.refuses("append: " + text, [&] {
        kv::append(now.exec, now.view, now.state, {.sequence = 1, .tokens = 1, .position = 20, .in_flight = true});
      });
      now.refuses("commit: " + text, [&] { kv::commit(now.exec, now.view, 1, 1); });
      now.refuses("truncate: " + text, [&] { kv::truncate(now.exec, now.view, now.state, 1, 5); });
      CHECK(error_of([&] { kv::append(now.exec, now.view, now.state, {.tokens = 1, .position = 10}); }).empty());
      CHECK(error_of([&] { kv::truncate(now.exec, now.view, now.state, 0, 5); }).empty());
    });
  }

  TEST_CASE("select refuses them, and a step does before it appends") {
    in_trouble([](working_batch& now, std::string const& text) {
      kv::selection const quest{.score = kv::quest{.page = 4}, .budget = kv::per_lane{8}};
      auto [state, plan] = state_and_plan(now.exec, quest, now.view);
      now.refuses("observe: " + text, [&] { kv::observe(now.exec, quest, now.signals(), state); });
      now.refuses("select: " + text, [&] { kv::select_pages(now.exec, quest, now.signals(), state, plan); });
      kv::cache_policy const all{.evict = kv::eviction{.score = kv::knorm{}, .budget = kv::per_lane{6}}};
      auto [columns, plans] = state_and_plan(now.exec, all, now.view);
      now.refuses("step: " + text, [&] {
        kv::step(now.exec, all, kv::signals(now.view.lanes), now.view, columns, plans, {.tokens = 1, .position = 10},
                 [] {});
      });
    });
  }

  TEST_CASE("verbs that are called by themselves refuse them") {
    in_trouble([](working_batch& now, std::string const& text) {
      kv::lanes const batch = now.view.lanes;
      std::vector<float> floats(8 * 16, 7.0f);
      kv::score_view const out = kv::contiguous_scores(batch, kv::granularity::lane, floats.data(), 16);
      owned_keep keep(out);
      now.refuses("compute_attention_mass: " + text, [&] {
        kv::ops::compute_attention_mass(now.exec, kv::keys_of(now.view), now.queries.view(), {}, out);
      });
      now.refuses("pool: " + text, [&] { kv::ops::pool(now.exec, kv::pooling{kv::max_pool{3}}, out, 0); });
      now.refuses("map: " + text, [&] { kv::ops::map(now.exec, out, [](float, kv::entry) { return 0.0f; }); });
      now.refuses("top_k: " + text, [&] { kv::ops::top_k(now.exec, out, kv::plain_top_k{2}, keep.view()); });
      now.refuses("select_if: " + text, [&] { kv::ops::select_if(now.exec, out, picking{}, keep.view()); });
      now.refuses("gather_rows: " + text, [&] {
        kv::ops::gather_rows(now.exec, now.plan.keep(), now.view,
                             std::span<kv::recorded_column const>(now.state.columns()));
      });
      kv::quest const quest{.page = 4};
      kv::selection const reading{.score = quest, .budget = kv::per_lane{8}};
      auto const held = kv::make_state(now.exec, reading, now.view);
      auto const bounds = std::get<0>(quest.recorders()).view(held.columns_from(0));
      now.refuses("page_scores: " + text,
                  [&] { kv::ops::page_scores(now.exec, batch, bounds, now.queries.view(), kv::reduction::max, out); });
      keep.view().lists = kv::side::dropped;
      now.refuses("argmin: " + text, [&] { kv::ops::argmin(now.exec, out, kv::plain_top_k{2}, keep.view()); });
      CHECK(floats == std::vector<float>(8 * 16, 7.0f));
    });
  }

  TEST_CASE("verbs that are called by themselves refuse rows that only their engine can read") {
    working_batch now;
    std::vector<float> floats(8 * 16, 7.0f);
    kv::score_view const out = kv::contiguous_scores(now.view.lanes, kv::granularity::lane, floats.data(), 16);
    kv::keys keys = kv::keys_of(now.view);
    kv::query_view rows = now.queries.view();
    auto const mass = [&] { kv::ops::compute_attention_mass(now.exec, keys, rows, {}, out); };
    auto const norm = [&] { kv::ops::row_norm(now.exec, keys, [](float, float of) { return of; }, out); };
    std::string const rule = " = opaque rows, but only their engine can read them";
    rows.element = kv::codec::opaque;
    now.refuses("compute_attention_mass: queries" + rule, mass);
    rows.element = kv::codec::f32;
    keys.rows.element = kv::codec::opaque;
    now.refuses("compute_attention_mass: keys" + rule, mass);
    now.refuses("row_norm: rows" + rule, norm);
    kv::selection const quest{.score = kv::quest{.page = 4}, .budget = kv::per_lane{8}};
    auto state = kv::make_state(now.exec, quest, now.view);
    kv::recorded_columns const recorded = state.columns_from(0);
    now.refuses("extend_bounds: keys" + rule, [&] {
      kv::ops::extend_bounds(
          now.exec, now.view.lanes, keys,
          kv::page_bound_memory{recorded.table<std::byte>(0), recorded.table<int>(1), kv::codec::f32, 4, 4});
    });
    CHECK(floats == std::vector<float>(8 * 16, 7.0f));
  }

  TEST_CASE("a lane that is full, one that is empty, and one of drafts alone are no mistake") {
    for (auto const& [count, drafts] : {std::array{16, 0}, std::array{0, 0}, std::array{2, 2}}) {
      working_batch now;
      for (int i = 4; i < 8; ++i) now.cache.put(now.cache.lane_at(i), up_to(count));
      now.cache.set_drafts(1, drafts);
      for (int r = 0; r < 3; ++r) now.queries.set_position(1, r, 13 + r);
      kv::observe(now.exec, now.policy, now.signals(), now.state);
      kv::decide(now.exec, now.policy, now.signals(), now.state, now.plan);
      kv::apply(now.exec, kv::compact{}, now.plan, now.view, now.state);
      CHECK(now.cache.count({1, 1, 0}) == (count == 16 ? 6 : count));
    }
  }

  TEST_CASE("a count is never believed beyond the bound by what reads it in a kernel") {
    std::vector<int> counts = {most, -5, 4};
    owned_lanes const lanes(1, 1, 3, 4, counts);
    CHECK(lanes.view().committed({0, 0, 0}) == 4);
    CHECK(lanes.view().committed({0, 0, 1}) == 0);
    CHECK(lanes.view().committed({0, 0, 2}) == 4);
  }

  TEST_CASE("a budget below zero is one of zero: what is forced stays, and nothing overflows") {
    struct below_zero {
      int tokens = least;
      int operator()(kv::lane, int) const { return tokens; }
      bool operator==(below_zero const&) const = default;
    };
    working_batch now;
    kv::eviction const lowest{.score = kv::h2o{}, .protect = kv::sinks{2}, .budget = below_zero{}};
    kv::decide(now.exec, lowest, now.signals(), now.state, now.plan);
    for (int i = 0; i < 8; ++i) CHECK(std::ranges::equal(now.plan.keep().listed(i), std::array{0, 1}));
    CHECK(now.plan.report().forced_over_budget == 8);
    owned_lanes const lanes(1, 1, 1, 4, {4});
    owned_scores scores(lanes.view());
    owned_keep keep(scores.view());
    kv::ops::top_k(now.exec, scores.view(), kv::plain_top_k{least}, keep.view());
    CHECK(keep.kept(0).empty());
  }
}
