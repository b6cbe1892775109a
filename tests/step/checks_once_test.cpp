// SPDX-License-Identifier: Apache-2.0
// A step looks at each part of its policy once, before anything is changed.
#include "support/dual_engine.hpp"

namespace checks_once_test {

using namespace kvpolicy_test;

int looks = 0;  ///< how often any part was looked at

/// Scores every entry alike, and counts how often it is checked.
struct counting_score {
  using needs = kv::needs<>;
  static constexpr kv::granularity decides = kv::granularity::lane;
  struct zero {
    KVPOLICY_HD float operator()(float, kv::entry) const { return 0.5f; }
  };
  void check(char const*) const { ++looks; }
  void score(auto& exec, auto const&, kv::score_view const& out) const { kv::ops::map(exec, out, zero{}); }
  friend bool operator==(counting_score const&, counting_score const&) = default;
};

TEST_SUITE("step/checks_once") {
  TEST_CASE("one step checks the scorer of its admission once and that of its eviction once") {
    dual_engine engine({.rows = 8, .page = 4, .pages = 100, .bound = 64});
    kv::dual_cache both = engine.view();
    kv::host_executor exec;
    kv::cache_policy const policy{
        .admit = kv::admission{.score = counting_score{}, .window = 4},
        .evict = kv::eviction{.score = counting_score{}, .budget = kv::per_lane{16}},
    };
    auto [held, plans] = state_and_plan(exec, policy, both);
    for (int position = 0; position < 40; ++position) {
      looks = 0;
      kv::step(exec, policy, kv::signals{both.window.lanes}, both, held, plans, {.tokens = 1, .position = position},
               [] {});
      CHECK(looks == 2);
    }
    CHECK(*both.pages.entries.lanes.count.row({}) == 16);
  }
}

}  // namespace checks_once_test
