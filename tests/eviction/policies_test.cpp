// SPDX-License-Identifier: Apache-2.0
// Policies are values: printable, comparable, copyable, usable in constant expressions.

#include "support/test.hpp"

namespace kv = kvpolicy;

namespace {

constexpr auto composed = kv::eviction{
    .score = kv::snapkv{.window = 16, .pool = kv::avg_pool{5}, .rows = kv::reduction::max, .group = kv::reduction::sum},
    .protect = kv::sinks{4} | kv::position_span{8, 12},
    .budget = kv::per_lane{256},
    .trigger = kv::over_budget{64}};

/// A new policy is its neighbour with one part changed; each must make a difference.
template <class Policy, class Change>
bool differs(Policy policy, Change change) {
  Policy const before = policy;
  change(policy);
  return !(policy == before) && before == before && kv::to_string(policy) != kv::to_string(before);
}

}  // namespace

TEST_SUITE("eviction/policies") {
  TEST_CASE("ready policies print their scorer, protection and budget with the paper's defaults") {
    CHECK(kv::to_string(kv::policies::full()) == "full | unlimited");
    CHECK(kv::to_string(kv::policies::streaming_llm()) == "streaming_llm(sinks=4) | budget(1024)");
    CHECK(kv::to_string(kv::policies::snapkv()) ==
          "snapkv(window=32, pool=max:7, rows=sum, group=mean) | sinks(0) | budget(1024)");
    CHECK(kv::to_string(kv::policies::h2o()) == "h2o(heavy=-1, recent=-1, group=sum) | sinks(0) | budget(1024)");
    CHECK(kv::to_string(kv::policies::knorm({.budget = 8, .sinks = 2})) == "knorm | sinks(2) | budget(8)");
    CHECK(kv::to_string(kv::policies::random({.score = {.seed = 7}})) == "random(seed=7) | sinks(0) | budget(1024)");
  }

  TEST_CASE("a composition prints every part that does something, and leaves out what does nothing") {
    CHECK(
        kv::to_string(composed) ==
        "snapkv(window=16, pool=avg:5, rows=max, group=sum) | sinks(4) | span(8, 12) | budget(256) | over_budget(64)");
    CHECK(kv::to_string(kv::eviction{.score = kv::knorm{}, .budget = kv::per_lane{3}}) == "knorm | budget(3)");
    CHECK(kv::to_string(kv::eviction{.score = kv::knorm{}, .protect = kv::recent{5}, .budget = kv::unlimited{}}) ==
          "knorm | recent(5) | unlimited");
    CHECK(kv::to_string(kv::everything{}) == "everything");
    CHECK(kv::to_string(kv::nothing{}) == "nothing");
    CHECK(kv::to_string(kv::compact{}) == "compact");
    CHECK(kv::to_string(kv::top{}) == "top");
  }

  TEST_CASE("policies that differ in one parameter are unequal and print differently") {
    CHECK(differs(composed, [](auto& policy) { policy.score.window = 17; }));
    CHECK(differs(composed, [](auto& policy) { policy.score.pool = kv::max_pool{5}; }));
    CHECK(differs(composed, [](auto& policy) { policy.score.pool = kv::avg_pool{7}; }));
    CHECK(differs(composed, [](auto& policy) { policy.score.rows = kv::reduction::last; }));
    CHECK(differs(composed, [](auto& policy) { policy.score.group = kv::reduction::mean; }));
    CHECK(differs(composed, [](auto& policy) { policy.protect.first.tokens = 5; }));
    CHECK(differs(composed, [](auto& policy) { policy.protect.second.begin = 9; }));
    CHECK(differs(composed, [](auto& policy) { policy.protect.second.end = 13; }));
    CHECK(differs(composed, [](auto& policy) { policy.budget.tokens = 255; }));
    CHECK(differs(composed, [](auto& policy) { policy.trigger.slack = 65; }));
    CHECK(differs(kv::policies::h2o(), [](auto& policy) { policy.score.heavy = 3; }));
    CHECK(differs(kv::policies::h2o(), [](auto& policy) { policy.score.recent = 3; }));
    CHECK(differs(kv::policies::h2o(), [](auto& policy) { policy.score.group = kv::reduction::max; }));
    CHECK(differs(kv::policies::random(), [](auto& policy) { policy.score.seed = 3; }));
    CHECK(differs(kv::policies::streaming_llm(), [](auto& policy) { policy.score.sinks = 3; }));
  }

  TEST_CASE("chance is another one for every seed, request, layer, head and position, and the same in every slot") {
    auto const drawn = [](std::uint64_t seed, kv::lane this_lane, int position, int const* request = nullptr) {
      return kv::random_scores::uniform{seed, {request}}(0, {this_lane, 0, 1, position, 0});
    };
    int const numbers[] = {0, 1};
    float const first = drawn(42, {}, 0);
    CHECK(first == drawn(42, {}, 0));
    CHECK(first != drawn(43, {}, 0));
    CHECK(first == drawn(42, {1, 0, 0}, 0));
    CHECK(first == drawn(42, {}, 0, numbers));
    CHECK(first != drawn(42, {}, 0, numbers + 1));
    CHECK(first != drawn(42, {0, 1, 0}, 0));
    CHECK(first != drawn(42, {0, 0, 1}, 0));
    CHECK(first != drawn(42, {}, 1));
  }

  TEST_CASE("over_budget waits for more entries than the budget and its slack") {
    constexpr kv::over_budget after{3};
    CHECK_FALSE(after(10, 10));
    CHECK_FALSE(after(13, 10));
    CHECK(after(14, 10));
    CHECK_FALSE(after(0, 2147483647));
    CHECK(kv::over_budget{}(11, 10));
    CHECK_FALSE(kv::over_budget{}(10, 10));
  }

  TEST_CASE("over_total waits for more than its number of all lanes, and for more than the budget") {
    constexpr kv::over_total after{100};
    CHECK(after(101, 10));
    CHECK_FALSE(after(100, 10));
    CHECK_FALSE(after(101, 101));
    CHECK(after(102, 101));
  }

  TEST_CASE("every decides where the position after the newest token is a multiple, with others and by name") {
    using namespace kvpolicy_test;
    constexpr kv::every fourth{4};
    CHECK(fourth.due(3));
    CHECK_FALSE(fourth.due(4));
    CHECK(fourth.due(-1));
    CHECK(kv::every{2147483647}.due(2147483646));
    CHECK_FALSE(kv::every{5}.due(2147483647));
    CHECK(fourth(11, 10));
    CHECK_FALSE(fourth(10, 10));
    mock_cache cache({.model = {.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .bound = 16});
    kv::host_executor exec;
    auto const kept = [&](auto const& policy) {
      auto [state, plan] = state_and_plan(exec, policy, cache.view());
      kv::signals const in{cache.lanes(), kv::keys_of(cache.view())};
      kv::decide(exec, policy, in, state, plan);
      bool const may_tell = kv::to_string(policy).find("scope") == std::string::npos;
      if (may_tell)
        CHECK(kv::due(policy, cache.view()) == (listed(plan.keep(), 0).size() < as_size(cache.committed({}))));
      return static_cast<int>(listed(plan.keep(), 0).size());
    };
    for (int count = 1; count <= 16; ++count) {
      std::vector<int> every_one;
      for (int e = 0; e < count; ++e) every_one.push_back(e);
      for (int i = 0; i < 2; ++i) cache.put(cache.lane_at(i), every_one);
      int const left = count % 4 == 0 && count > 5 ? 5 : count;
      CHECK(kept(kv::eviction{.score = kv::knorm{}, .budget = kv::per_lane{5}, .trigger = kv::every{4}}) == left);
      CHECK(kept(kv::parse("knorm | budget(5) | every(4)")) == left);
      CHECK(kept(kv::parse("knorm | budget(5, scope=layer) | every(4)")) == left);
    }
  }

  TEST_CASE("WG-KV's window attention has the fields and defaults of the released code") {
    CHECK(kv::to_string(kv::admitted_attention{}) == "admitted_attention(window=256, pool=max:5)");
  }

  TEST_CASE("policies are regular values of no more than their parameters") {
    static_assert(std::regular<std::remove_cvref_t<decltype(composed)>>);
    static_assert(std::is_trivially_copyable_v<decltype(composed)>);
    static_assert(composed == composed);
    static_assert(!(kv::policies::knorm({.budget = 3}) == kv::policies::knorm({.budget = 4})));
    auto copy = composed;
    CHECK(copy == composed);
    copy.budget.tokens = 1;
    CHECK(composed.budget.tokens == 256);
  }
}
