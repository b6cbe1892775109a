// SPDX-License-Identifier: Apache-2.0
// page_gates: pages are read by numbers that the engine gives.

#include "reference/pages.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;
using gated_pages = kv::selection<kv::page_gates>;

/// A cache, a number for each page of each lane, and a selection by them.
struct gated {
  gated(mock_options const& shape, gated_pages how)
      : cache(shape),
        policy(how),
        pages((shape.bound - 1) / how.score.page + 1),
        gates(as_size(cache.lane_count() * pages)),
        state(kv::make_state(exec, policy, cache.view())),
        plan(kv::make_plan(exec, policy, cache.view())) {}

  [[nodiscard]] kv::page_gate given() const {
    kv::shape const model = cache.view().shape;
    std::int64_t const lanes = std::int64_t{model.layers} * model.kv_heads;
    return {.score = {gates.data(), lanes * pages, std::int64_t{model.kv_heads} * pages, pages},
            .page = policy.score.page,
            .pages = pages};
  }
  void select(kv::page_gate const& by) { kv::select_pages(exec, policy, kv::signals{cache.lanes(), by}, state, plan); }
  [[nodiscard]] std::vector<int> chosen(int lane) { return listed(plan.keep(), lane); }

  kv::host_executor exec;
  mutable mock_cache cache;
  gated_pages policy;
  int pages;
  std::vector<float> gates;
  kv::state<kv::host_executor> state;
  kv::selection_plan<kv::host_executor> plan;
};

/// One lane of 10 entries in pages of 4, of which two are read.
struct ten_entries : gated {
  ten_entries() : gated(shape(), {.score = {.page = 4}, .budget = {8}, .dense_layers = 0}) {
    cache.put({}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  }
  static mock_options shape() {
    mock_options made;
    made.bound = 12;
    return made;
  }
};

TEST_SUITE("selection/page_gates") {
  TEST_CASE("the pages with the highest gates are read, and the last") {
    ten_entries now;
    now.gates = {0.25f, 0.5f, 0.125f};
    now.select(now.given());
    CHECK(now.chosen(0) == std::vector{1, 2});
    CHECK(now.plan.score(0, 0) == 0.25f);
    now.gates = {0.5f, 0.5f, 0.125f};  // of equal gates the lower page
    now.select(now.given());
    CHECK(now.chosen(0) == std::vector{0, 2});
    now.gates = {std::numeric_limits<float>::quiet_NaN(), -1e30f, 0};
    now.select(now.given());
    CHECK(now.chosen(0) == std::vector{1, 2});
    CHECK(now.plan.report().nan_scores == 1);
  }

  TEST_CASE("a page without a gate is read before others") {
    ten_entries now;
    now.gates = {0.25f, 0.5f, 0.125f};
    kv::page_gate first = now.given();
    first.pages = 1;
    now.select(first);
    CHECK(now.chosen(0) == std::vector{1, 2});
    CHECK(now.plan.score(0, 1) == std::numeric_limits<float>::infinity());
  }

  TEST_CASE("lanes of any shape read as the reference") {
    holds("gates", [] {
      mock_options const shape = any_mock(6);
      int const page = *rc::gen::element(4, 16, 1, 3);
      int const tokens = *rc::gen::element(shape.bound / 2, 0, 1, page, 2 * page + 1, shape.bound);
      int const dense = *rc::gen::element(0, 1, 2);
      gated now(shape, {.score = {.page = page}, .budget = {tokens}, .dense_layers = dense});
      fill(now.cache, true);
      for (float& each : now.gates) each = static_cast<float>(*rc::gen::inRange(-6, 7)) / 4;
      now.select(now.given());
      for (int i = 0; i < now.cache.lane_count(); ++i) {
        kv::lane const this_lane = now.cache.lane_at(i);
        float const* const row = now.given().score.row(this_lane);
        reference::row const scores(row, row + reference::pages_of(now.cache.committed(this_lane), page));
        RC_ASSERT(now.chosen(i) == reference::quest_pages(scores, page, tokens, this_lane.layer < dense));
      }
    });
  }

  TEST_CASE("nothing allocates after the plan is made") {
    ten_entries now;
    CHECK(allocations_in([&] { now.select(now.given()); }) == 0);
  }

  TEST_CASE("what cannot be read is refused, and the choice before stays") {
    ten_entries now;
    now.gates = {0.25f, 0.5f, 0.125f};
    now.select(now.given());
    auto const refused = [&](auto const& change) {
      kv::page_gate wrong = now.given();
      change(wrong);
      return error_of([&] { now.select(wrong); });
    };
    CHECK(refused([](auto& gate) { gate.page = 8; }) == "select: page_gate.page = 8, but page_gates reads pages of 4");
    CHECK(refused([](auto& gate) { gate.page = 0; }) ==
          "select: page_gate.page = 0, but a page holds at least one entry");
    CHECK(refused([](auto& gate) { gate.pages = -1; }) ==
          "select: page_gate.pages = -1, but a count cannot be negative");
    CHECK(refused([](auto& gate) { gate.score.data = nullptr; }).rfind("select: page_gate", 0) == 0);
    CHECK(now.chosen(0) == std::vector{1, 2});
    CHECK(kv::to_string(now.policy) == "page_gates(name=, page=4) | budget(8) | dense(0)");
  }
}

}  // namespace
