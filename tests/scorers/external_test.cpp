// SPDX-License-Identifier: Apache-2.0
// external: scores that somebody else made are the policy's, lane by lane.

#include "laws/refusal.hpp"

using namespace kvpolicy_test;

TEST_SUITE("scorers/external") {
  TEST_CASE("each lane keeps the entries of the highest given scores, typed and by name") {
    mock_cache cache({.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .bound = 5});
    std::vector<float> given;
    for (int i = 0; i < cache.lane_count(); ++i) {
      cache.put(cache.lane_at(i), {0, 1, 2, 3, 4});
      for (int e = 0; e < 5; ++e) given.push_back(static_cast<float>((e + 2 * i) % 5));  // the best of lane i: 4 - 2 i
    }
    kv::external_scores const scores{{given.data(), 20, 10, 5}};
    kv::host_executor exec;
    kv::cache const view = cache.view();
    kv::signals const in{view.lanes, scores};
    auto const check = [&](auto const& policy) {
      auto [state, plan] = decided(exec, in, policy, view);
      CHECK(listed(plan.keep(), 0) == std::vector<int>{3, 4});
      CHECK(listed(plan.keep(), 1) == std::vector<int>{1, 2});
      CHECK(listed(plan.keep(), 2) == std::vector<int>{0, 4});
      CHECK(listed(plan.keep(), 3) == std::vector<int>{2, 3});
    };
    check(kv::eviction<kv::external>{.budget = {2}});
    check(kv::parse("external(name=mine) | budget(2)"));
  }

  TEST_CASE("without scores there is nothing to decide by") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 5});
    kv::host_executor exec;
    kv::any_policy const policy = kv::parse("external(name=mine) | budget(2)");
    kv::cache const view = cache.view();
    auto [state, plan] = state_and_plan(exec, policy, view);
    CHECK(error_of([&] {
            kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
          }).starts_with("decide: signals = none, but external needs signal "));
  }

  TEST_CASE("a label is read whole, whatever it was before, and one that is too long leaves it as it was") {
    kv::label of;
    CHECK(kv::read_text("a-rather-long-name", of));
    CHECK(kv::to_string(of) == "a-rather-long-name");
    CHECK(kv::read_text("short", of));
    CHECK(kv::to_string(of) == "short");
    std::string const longest(31, 'x');
    CHECK(!kv::read_text(longest + "x", of));
    CHECK(kv::to_string(of) == "short");
    CHECK(kv::read_text(longest, of));
    CHECK(kv::to_string(of) == longest);
    CHECK(kv::read_text("", of));
    CHECK(of == kv::label{});
  }
}
