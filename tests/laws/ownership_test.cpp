// SPDX-License-Identifier: Apache-2.0
// What belongs to what: a state to its policy, scratch to its executor, a shared table to all who share it.
#include "support/test.hpp"
#include "vocabulary/engine.hpp"

namespace ownership_test {

using vocabulary::engine;
using namespace kvpolicy_test;

static_assert(!std::is_copy_constructible_v<kv::plan<kv::host_executor>>);
static_assert(std::is_move_constructible_v<kv::plan<kv::host_executor>>);
static_assert(!std::is_copy_constructible_v<kv::state<kv::host_executor>>);

/// A scorer that runs a verb which needs scratch. Only the second one says so.
struct silent_attention {
  using needs = kv::needs<kv::keys, kv::queries>;
  static constexpr kv::granularity decides = kv::granularity::lane;
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    kv::ops::compute_attention_mass(exec, in.template get<kv::keys>(), in.template get<kv::queries>(), {.last_rows = 8},
                                    out);
  }
  friend bool operator==(silent_attention const&, silent_attention const&) = default;
};
struct declared_attention {
  silent_attention score_of{};
  using needs = silent_attention::needs;
  using verbs = kv::verbs<kv::ops::compute_attention_mass_t>;
  static constexpr kv::granularity decides = kv::granularity::lane;
  void score(auto& exec, auto const& in, kv::score_view const& out) const { score_of.score(exec, in, out); }
  friend bool operator==(declared_attention const&, declared_attention const&) = default;
};

}  // namespace ownership_test

using namespace ownership_test;

TEST_SUITE("laws/ownership") {
  TEST_CASE("a scorer whose verb needs scratch says so, or the decision is refused before memory is overrun") {
    engine model;
    kv::cache cache = model.view();
    auto const decide_by = [&](auto const& score) {
      kv::host_executor exec(2);
      kv::eviction const policy{.score = score, .budget = kv::per_lane{8}};
      auto [state, plan] = state_and_plan(exec, policy, cache);
      kv::append(exec, cache, state, {.tokens = 40, .position = 0});
      std::string const error = kvpolicy_test::error_of([&] {
        kv::decide(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache), model.rows_of(0, 40)}, state, plan);
      });
      CHECK(plan.decided() == error.empty());
      kv::truncate(exec, cache, state, 0, 0);
      return error;
    };
    CHECK(decide_by(silent_attention{}).find("names it (using verbs = kvpolicy::verbs<...>)") != std::string::npos);
    CHECK(decide_by(declared_attention{}).empty());
  }

  TEST_CASE("a state made for another window is refused before its ring is overrun") {
    kv::host_executor exec;
    engine model;
    kv::cache cache = model.view();
    auto const small = kv::policies::snapkv({.budget = 16, .score = {.window = 8}});
    auto const large = kv::policies::snapkv({.budget = 64, .score = {.window = 64}});
    auto state = kv::make_state(exec, small, cache);
    auto plan = kv::make_plan(exec, large, cache);
    kv::append(exec, cache, state, {.tokens = 40, .position = 0});
    kv::signals const in{cache.lanes, kv::keys_of(cache), model.rows_of(0, 40)};
    char const* const text =
        ": state = another policy's, but make_state makes it for the policy that observes and decides";
    CHECK(error_of([&] { kv::observe(exec, large, in, state); }) == (std::string("observe") + text).c_str());
    CHECK(error_of([&] { kv::decide(exec, large, in, state, plan); }) == (std::string("decide") + text).c_str());
    auto const stateless = kv::policies::knorm({.budget = 8});
    CHECK_THROWS_AS(kv::decide(exec, stateless, in, state, plan), kv::invalid_argument);
  }

  TEST_CASE("an executor without scratch for the batch is refused") {
    kv::host_executor exec;
    kv::host_executor bare;
    engine model;
    kv::cache cache = model.view();
    auto const policy = kv::policies::knorm({.budget = 8});
    auto [state, plan] = state_and_plan(exec, policy, cache);
    kv::append(exec, cache, state, {.tokens = 20, .position = 0});
    CHECK(error_of([&] { kv::decide(bare, policy, kv::signals{cache.lanes, kv::keys_of(cache)}, state, plan); }) ==
          "decide: exec = an executor without scratch for this batch, but plan and state are made on the "
          "executor that runs them");
    CHECK(plan.keep().indices == nullptr);
  }

  TEST_CASE("one layer's decision may not edit a table that other layers read") {
    kv::host_executor exec;
    engine model;
    kv::cache cache = model.view();
    cache.lanes.count.layer = cache.lanes.position.layer = 0;
    auto const policy = kv::policies::knorm({.budget = 8});
    auto [state, plan] = state_and_plan(exec, policy, cache);
    kv::append(exec, cache, state, {.tokens = 20, .position = 0});
    kv::decide(exec, policy, kv::signals{cache.lanes.layers_only(0, 1), kv::keys_of(cache)}, state, plan);
    CHECK(error_of([&] { kv::apply(exec, kv::compact{}, plan, cache, state); }) ==
          "apply: lanes.count = shared by layers, but these layers decide apart: reduce_lanes makes them decide "
          "together");
    CHECK(model.count[0] == 20);
  }

  TEST_CASE("drafts grow and shrink in all layers at once") {
    kv::host_executor exec;
    engine model;
    kv::cache cache = model.view();
    auto state = kv::make_state(exec, kv::policies::knorm({.budget = 8}), cache);
    kv::cache one_layer = cache;
    one_layer.lanes = cache.lanes.layers_only(0, 1);
    char const* const text = ": lanes.layers = 1, but drafts are counted for all 2 layers of a sequence together";
    CHECK(error_of([&] { kv::append(exec, one_layer, state, {.tokens = 2, .position = 0, .in_flight = true}); }) ==
          (std::string("append") + text).c_str());
    CHECK(error_of([&] { kv::truncate(exec, one_layer, state, 0, 0); }) == (std::string("truncate") + text).c_str());
    CHECK(model.drafts == 0);
  }

  TEST_CASE("rows of a query ring do not survive the text that they belong to") {
    kv::host_executor exec;
    auto const policy = kv::policies::snapkv({.budget = 16, .score = {.window = 8, .pool = kv::no_pool{}}});
    auto const decide_on = [&](engine& model, bool with_a_past) {
      for (std::size_t i = 0; i < model.k.size(); ++i) model.k[i] = static_cast<float>((i * 7919) % 101) / 50 - 1;
      for (std::size_t i = 0; i < model.q.size(); ++i) model.q[i] = static_cast<float>((i * 104729) % 97) / 24 - 2;
      kv::cache cache = model.view();
      auto [state, plan] = state_and_plan(exec, policy, cache);
      if (with_a_past) {
        kv::append(exec, cache, state, {.tokens = 40, .position = 0});
        kv::observe(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache), model.rows_of(0, 40)}, state);
        kv::truncate(exec, cache, state, 0, 0);
      }
      kv::append(exec, cache, state, {.tokens = 60, .position = 0});
      kv::observe(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache), model.rows_of(56, 60)}, state);
      kv::decide(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache)}, state, plan);
      auto const kept = plan.keep().listed(0);
      return std::vector<int>(kept.begin(), kept.end());
    };
    engine fresh;
    engine used;
    CHECK(decide_on(used, true) == decide_on(fresh, false));
  }
}
