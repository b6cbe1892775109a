// SPDX-License-Identifier: Apache-2.0
// select_if on the host against the slowest obvious way, for every instruction set and two numbers of threads.

#include "support/test.hpp"

namespace select_if_test {

using namespace kvpolicy_test;

struct enough {
  float least = 0;
  int first = 0;
  int last = 0;
  int each = 0;  ///< every so many-th position is forced; 0: none
  [[nodiscard]] bool picks(float score) const { return score >= least; }
  [[nodiscard]] bool forces(kv::entry const& at) const {
    return at.ordinal < first || at.ordinal >= at.count - last || (each > 0 && at.position % each == 0);
  }
};

/// A rule that is no value of plain bytes.
struct with_memory : enough {
  std::vector<float> limits;
  [[nodiscard]] bool picks(float score) const { return score >= limits.front(); }
};

template <class Rule>
void agrees(kv::score_view const& scores, Rule const& rule) {
  for (kv::isa const level : vector_isas()) {
    for (int const threads : {1, 3}) {
      kv::host_executor exec(threads, level);
      owned_keep keep(scores);
      kv::ops::select_if(exec, scores, rule, keep.view());
      int nan = 0;
      int triggered = 0;
      for (int s = 0; s < scores.segments(); ++s) {
        kv::lane const one = scores.lane_of(s);
        int const count = scores.lanes.committed(one);
        std::vector<int> expected;
        for (int e = 0; e < count; ++e) {
          float const score = scores.row(s)[e];
          bool const forced = rule.forces({one, e, count, scores.lanes.position.row(one)[e], 0});
          nan += !forced && score != score ? 1 : 0;
          if (forced || rule.picks(score)) expected.push_back(e);
        }
        triggered += std::ssize(expected) < count ? 1 : 0;
        CHECK(keep.kept(s) == expected);
        CHECK(keep.view().entry_count[s] == count);
      }
      CHECK(keep.report().nan_scores == nan);
      CHECK(keep.report().triggered == triggered);
    }
  }
}

TEST_SUITE("ops/select_if") {
  TEST_CASE("select_if keeps what is picked or forced, for any number of entries and however many stay") {
    dice random(5);
    for (int const n : {1, 2, 31, 32, 33, 63, 64, 65, 100, 128, 4097}) {
      for (float const least : {-INFINITY, -1.0f, 0.0f, 0.9f, INFINITY}) {
        owned_lanes const lanes(2, 1, 2, n, {n, 0, n - 1, n});
        owned_scores scores(lanes.view());
        for (float& each : scores.all())
          each = random.chance(n > 4000 ? 0 : 4) ? NAN : troubled_score(random, trouble::ties);
        agrees(scores.view(), enough{.least = least});
        agrees(scores.view(), enough{.least = least, .first = 4, .last = 33});
        agrees(scores.view(), enough{.least = least, .each = 3});
      }
    }
  }

  TEST_CASE("select_if writes ordinals over the bits that say what stays, and loses none, where nearly all stay") {
    dice random(6);
    for (int const n : {1, 5, 32, 40, 700, 1024}) {
      std::vector<int> counts(80, n);
      owned_lanes const lanes(1, 8, 10, n, counts);
      owned_scores scores(lanes.view());
      for (int const percent : {100, 99, 97, 90}) {
        for (float& each : scores.all()) each = random.chance(percent) ? 1.0f : -1.0f;
        agrees(scores.view(), enough{.least = 0});
      }
    }
  }

  TEST_CASE("a rule of select_if may own memory") {
    dice random(7);
    owned_lanes const lanes(1, 1, 2, 300, {300, 299});
    owned_scores scores(lanes.view());
    for (float& each : scores.all()) each = troubled_score(random, trouble::ties);
    with_memory rule;
    rule.limits = {0.5f};
    rule.last = 3;
    agrees(scores.view(), rule);
  }
}

}  // namespace select_if_test
