// SPDX-License-Identifier: Apache-2.0
// Floors that a shared budget does not hold: only entries within them compete, whatever their scores are.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;
using ordinals = std::vector<int>;

/// Forces the last `count` entries of the first head.
struct last_of_first {
  int count = 0;
  bool operator()(kv::entry at) const { return at.lane.head == 0 && at.ordinal >= at.count - count; }
  [[maybe_unused]] friend bool operator==(last_of_first const&, last_of_first const&) = default;
};

}  // namespace

TEST_SUITE("ops/top_k: pools") {
  TEST_CASE("an entry within its lane's floor goes before one that is not, even if its score is NaN") {
    // Two heads of 6 entries share a budget of 2 * 2, and each has a floor of 2. The first forces 3: its floor is used
    // up, so that of all that is left only two of the second's entries may compete, and one of them is kept.
    owned_lanes const lanes(1, 1, 2, 6, {6, 6});
    owned_scores scores(lanes.view());
    for (float& each : scores.row(0, 6)) each = 5;
    for (float& each : scores.row(1, 6)) each = std::numeric_limits<float>::quiet_NaN();
    for (int const threads : {1, 2}) {
      kv::host_executor exec(threads);
      exec.reserve(kv::implementation<kv::ops::top_k_t, kv::host>::scratch({}, 6));
      owned_keep keep(scores.view());
      auto const rule =
          kv::detail::decision_rule{kv::nothing{}, last_of_first{3}, kv::per_layer{2, 1.0}, kv::over_budget{}};
      kv::ops::top_k(exec, scores.view(), rule, keep.view());
      CHECK(keep.kept(0) == ordinals{3, 4, 5});
      CHECK(keep.kept(1) == ordinals{0});
    }
  }
}
