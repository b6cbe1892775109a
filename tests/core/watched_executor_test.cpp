// SPDX-License-Identifier: Apache-2.0
// An executor that watches what it runs: its verbs begin and end in turn, and it is told every decision.

#include "support/test.hpp"

namespace watched_executor_test {

using namespace kvpolicy_test;

/// Notes "verb" when it begins and "/verb" when it ends.
class noted {
 public:
  noted(std::vector<std::string>& to, char const* verb) : to_(&to), verb_(verb) { to.push_back(verb_); }
  ~noted() { to_->push_back("/" + verb_); }
  noted(noted const&) = delete;
  noted& operator=(noted const&) = delete;

 private:
  std::vector<std::string>* to_;
  std::string verb_;
};

// example-begin watched
struct watched : kv::host_executor {
  [[nodiscard]] noted range(char const* verb) { return {verbs, verb}; }
  void decided(auto const& policy, auto const& plan) {
    decisions.push_back(kv::to_string(policy) + ": " + std::to_string(plan.report().triggered));
  }

  std::vector<std::string> verbs, decisions;
};
// example-end watched

TEST_SUITE("core/watched_executor") {
  TEST_CASE("verbs begin and end, and decisions are told, whatever made them") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 4}});
    for (int head = 0; head < 2; ++head) cache.put({0, 0, head}, {0, 1, 2, 3});
    kv::cache view = cache.view();
    watched exec;
    auto const policy = kv::eviction{.score = kv::knorm{}, .budget = kv::per_lane{2}};
    auto [state, plan] = state_and_plan(exec, policy, view);
    kv::signals const in{view.lanes, kv::keys_of(view)};
    kv::decide(exec, policy, in, state, plan);
    CHECK(exec.verbs == std::vector<std::string>{"row_norm", "/row_norm", "top_k", "/top_k"});
    CHECK(exec.decisions == std::vector<std::string>{"knorm | budget(2): 2"});
    kv::apply(exec, kv::compact{}, plan, view, state);
    CHECK(exec.verbs.size() > 4);
    CHECK(cache.committed({0, 0, 0}) == 2);
  }

  TEST_CASE("a decision that is refused is not told") {
    mock_cache cache({});
    kv::cache view = cache.view();
    watched exec;
    auto const policy = kv::eviction{.score = kv::knorm{}, .budget = kv::per_lane{2}};
    auto [state, plan] = state_and_plan(exec, policy, view);
    view.lanes.capacity = 3;
    CHECK_THROWS_AS(kv::decide(exec, policy, kv::signals{view.lanes, kv::keys_of(view)}, state, plan),
                    kv::invalid_argument);
    CHECK(exec.decisions.empty());
  }
}

}  // namespace watched_executor_test
