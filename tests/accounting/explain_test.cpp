// SPDX-License-Identifier: Apache-2.0
#include "laws/refusal.hpp"

namespace kvpolicy_test {

/// Scores that a test writes down.
struct look_up {
  float const* scores = nullptr;
  float operator()(float, kv::entry at) const { return scores[at.ordinal]; }
  friend bool operator==(look_up const&, look_up const&) = default;
};
using given = scored_by<look_up>;

}  // namespace kvpolicy_test

namespace {

using namespace kvpolicy_test;

mock_options one_lane(int bound) {
  return {.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .sequences = 1, .bound = bound};
}

}  // namespace

TEST_SUITE("accounting/explain") {
  TEST_CASE("a line says whether an entry was forced, its score, its rank and the cut") {
    constexpr float nothing = std::numeric_limits<float>::quiet_NaN();
    float const scores[] = {9, 1, 5, nothing, 5, 2, 7, 3};
    mock_cache cache(one_lane(8));
    kv::host_executor exec;
    kv::cache view = cache.view();
    kv::eviction const policy{.score = given{scores}, .protect = kv::recent{1}, .budget = kv::per_lane{4}};
    auto [state, plan] = state_and_plan(exec, policy, view);
    CHECK(error_of([&] { (void)kv::explain(policy, plan, 0, 0); }) ==
          "explain: plan = empty, but decide comes before explain");
    kv::append(exec, view, state, {.tokens = 8, .position = 100});
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    auto const line = [&](int entry) { return kv::explain(policy, plan, 0, entry); };
    std::string const where = "sequence 0, layer 0, head 0, entry ";
    CHECK(line(0) == where + "0 at position 100: kept; score 9 ranks 1 of 7, 3 were kept down to 5");
    CHECK(line(2) == where + "2 at position 102: kept; score 5 ranks 3 of 7, 3 were kept down to 5");
    CHECK(line(4) == where + "4 at position 104: dropped; score 5 ranks 4 of 7, 3 were kept down to 5");
    CHECK(line(3) == where + "3 at position 103: dropped; score nan ranks 7 of 7, 3 were kept down to 5");
    CHECK(line(7) == where + "7 at position 107: kept; forced");
    CHECK(error_of([&] { (void)line(8); }) == "explain: ordinal = 8, but the segment decided about 8 entries");
    CHECK(error_of([&] { (void)kv::explain(policy, plan, 1, 0); }) == "explain: segment = 1, but the plan has 1");
  }

  TEST_CASE("where nothing was dropped, or nothing but the forced was kept, a line says so") {
    float const scores[] = {3, 2, 1};
    mock_cache cache(one_lane(3));
    kv::host_executor exec;
    kv::cache view = cache.view();
    kv::eviction policy{.score = given{scores}, .protect = kv::sinks{1}, .budget = kv::per_lane{3}};
    auto [state, plan] = state_and_plan(exec, policy, view);
    kv::append(exec, view, state, {.tokens = 3, .position = 0});
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    CHECK(kv::explain(policy, plan, 0, 1) == "sequence 0, layer 0, head 0, entry 1 at position 1: kept, as all are");
    policy.budget.tokens = 0;
    kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
    CHECK(kv::explain(policy, plan, 0, 0) == "sequence 0, layer 0, head 0, entry 0 at position 0: kept; forced");
    CHECK(kv::explain(policy, plan, 0, 1) ==
          "sequence 0, layer 0, head 0, entry 1 at position 1: dropped; score 2 ranks 1 of 2, none was kept");
  }

  TEST_CASE("required_bytes is what plan, state and scratch take") {
    mock_cache cache(
        {.model = {.layers = 3, .query_heads = 8, .kv_heads = 2, .head_dim = 16}, .sequences = 2, .bound = 40});
    auto const check = [&](auto const& policy) {
      kv::host_executor exec;
      kv::required const told = kv::required_bytes<kv::host_executor>(policy, cache.view());
      kv::any_policy const erased = policy;
      CHECK(kv::required_bytes(erased, cache.view()).state == told.state);
      auto const state = kv::make_state(exec, policy, cache.view());
      std::size_t held = 0;
      for (kv::recorded_column const& each : state.columns()) {
        std::size_t const units = as_size(each.about.units != 0 ? each.about.units : 40);
        held += units * as_size(each.about.bytes) * 12;
      }
      std::size_t const epochs = 2 * 3 * sizeof(std::uint64_t);  // of two slots and three layers
      CHECK(told.state == held + state.counted().bytes() + epochs);
      CHECK(told.scratch >= exec.reserved());
      auto const plan = kv::make_plan(exec, policy, cache.view());
      CHECK(told.plan >= as_size(kv::segments(plan.lanes(), plan.decides())) * 40 * 8);
      CHECK(exec.reserved() == told.scratch);
    };
    check(kv::policies::snapkv());
    check(kv::policies::h2o());
    check(kv::policies::tova());
    check(kv::policies::full());
    check(kv::eviction{.score = kv::reduce_lanes<kv::h2o>{}});
    CHECK(error_of([&] {
            (void)kv::required_bytes<kv::host_executor>(kv::policies::knorm({.budget = -1}), cache.view());
          }) == "required_bytes: budget.tokens = -1, but a count cannot be negative");
  }
}

TEST_SUITE("by_name/any_policy") {
  TEST_CASE("a signal that is missing is refused by name when it is needed, and what a recorder holds is not missing") {
    mock_cache cache(one_lane(8));
    kv::host_executor exec;
    kv::cache view = cache.view();
    auto const refused = [&](char const* spec, auto const& in) {
      kv::any_policy const policy = kv::parse(spec);
      auto [state, plan] = state_and_plan(exec, policy, view);
      std::string const first = error_of([&] { kv::observe(exec, policy, in, state); });
      return first + "; " + error_of([&] { kv::decide(exec, policy, in, state, plan); });
    };
    std::vector<float> const received(8);
    kv::by_lane<float const> const mass{received.data(), 0, 0, 0};
    CHECK(refused("h2o", kv::signals{view.lanes, kv::keys_of(view)}) ==
          "observe: signals = keys, but h2o needs signal queries or attention_probabilities; ");
    CHECK(refused("snapkv", kv::signals{view.lanes}) ==
          "observe: signals = none, but snapkv needs signal queries; "
          "decide: signals = none, but snapkv needs signal keys");
    CHECK(refused("knorm", kv::signals{view.lanes}) == "; decide: signals = none, but knorm needs signal keys");
    CHECK(refused("random", kv::signals{view.lanes}) == "; ");
    CHECK(refused("h2o", kv::signals{view.lanes, kv::attention_mass{mass}}) == "; ");
  }

  TEST_CASE("erased decisions allocate nothing") {
    mock_cache cache({.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 16}, .bound = 40});
    kv::host_executor exec;
    kv::cache view = cache.view();
    kv::any_policy const policy = kv::parse("h2o | reduce_lanes(layer, max) | sinks(2) | budget(7)");
    auto [state, plan] = state_and_plan(exec, policy, view);
    kv::append(exec, view, state, {.tokens = 30, .position = 0});
    current_queries rows(cache, kv::codec::f32, 3, 3);
    kv::signals const in{view.lanes, kv::keys_of(view), kv::queries{rows.view()}};
    CHECK(allocations_in([&] {
            observe_and_decide(exec, policy, in, state, plan);
            kv::apply(exec, kv::compact{}, plan, view, state);
          }) == 0);
  }
}
