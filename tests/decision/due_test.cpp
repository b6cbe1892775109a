// SPDX-License-Identifier: Apache-2.0
// When a policy is due, and how often it decides after a forward of several tokens.

#include "support/test.hpp"

namespace due_test {

using namespace kvpolicy_test;

/// The entries of the longest lane after some forwards of four tokens, of a lane that holds 100 at first.
template <class Policy, class Applier>
int after_forwards(Policy const& policy, Applier const& how, int forwards, bool in_a_loop) {
  mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 256});
  cache.put({0, 0, 0}, up_to(100));
  kv::host_executor exec;
  kv::cache view = cache.view();
  std::vector<kv::lane_order> orders(1);
  if constexpr (!std::same_as<Applier, kv::compact>) view.lanes.order = {orders.data(), 1, 1, 1};
  auto [state, plan] = state_and_plan(exec, policy, view, how);
  int most = 0;
  for (int forward = 0; forward < forwards; ++forward) {
    kv::append(exec, view, state, {.tokens = 4, .position = 100 + 4 * forward});
    int decisions = 0;
    while (kv::due(policy, view) && (in_a_loop || decisions == 0) && decisions < 10) {
      ++decisions;
      kv::decide(exec, policy, kv::signals{view.lanes, kv::keys_of(view)}, state, plan);
      kv::apply(exec, how, plan, view, state);
    }
    CHECK(decisions < 10);
    most = std::max(most, *view.lanes.count.row({}));
  }
  return most;
}

TEST_SUITE("decision/due") {
  TEST_CASE("after four tokens a forward lowest_one decides in a loop, and top once") {
    auto const each_step = kv::policies::streaming_llm_decode({.budget = 100});
    CHECK(after_forwards(each_step, kv::overwrite{}, 19, true) == 100);
    CHECK(after_forwards(each_step, kv::overwrite{}, 19, false) == 157);
    auto const top = kv::policies::streaming_llm({.budget = 100});
    CHECK(after_forwards(top, kv::compact{}, 19, false) == 100);
    CHECK(after_forwards(top, kv::compact{}, 19, true) == 100);
  }

  TEST_CASE(
      "policies of which only decide can tell, and lanes with too many forced entries, are due after a decision") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 16});
    cache.put({0, 0, 0}, {0, 1, 2, 3});
    kv::cache const view = cache.view();
    for (char const* const spec :
         {"knorm | budget(9, scope=layer)", "knorm | budget(9, scope=global)", "knorm | budget(ratio=0.5, by=seen)",
          "knorm | at_least(-4)", "knorm | everything | budget(2)", "snapkv(window=8) | budget(3)"}) {
      CAPTURE(spec);
      CHECK(kv::due(kv::parse(spec), view));
    }
    CHECK_FALSE(kv::due(kv::parse("knorm | budget(9)"), view));
  }
}

}  // namespace due_test
