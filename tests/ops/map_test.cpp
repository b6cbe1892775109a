// SPDX-License-Identifier: Apache-2.0
// map shows every committed entry to a function once, with everything that is known of it.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// A number that no two entries share, plus the old score.
struct signature {
  float operator()(float old, kv::entry at) const {
    int const lane = (at.lane.sequence * 4 + at.lane.layer) * 4 + at.lane.head;
    return old + static_cast<float>((lane * 64 + at.ordinal) * 64 + at.count + (at.position == 2 * at.ordinal ? 0 : 1));
  }
};

}  // namespace

TEST_SUITE("ops/map") {
  TEST_CASE("replaces the score of every committed entry by a function of it, and nothing else") {
    holds("map == loop", [] {
      int const sequences = *rc::gen::inRange(1, 4);
      int const layers = *rc::gen::inRange(1, 4);
      int const heads = *rc::gen::inRange(1, 4);
      int const bound = *rc::gen::element(33, 1, 32, 40);
      int const drafts = *rc::gen::inRange(0, 2);
      dice random(any_seed());
      std::vector<int> counts(as_size(sequences * layers * heads));
      for (int& each : counts) each = random.between(drafts, bound);
      owned_lanes lanes(sequences, layers, heads, bound, counts);
      for (int s = 0; s < sequences; ++s) lanes.set_drafts(s, drafts);
      auto const among = lanes.view().layers_only(*rc::gen::inRange(0, layers), layers);
      owned_scores scores(among);
      kv::host_executor exec(*rc::gen::element(1, 3));
      kv::ops::map(exec, scores.view(), signature{});
      for (int i = 0; i < among.size(); ++i) {
        kv::lane const this_lane = among.at(i);
        int const count = lanes.count(lanes.view().index(this_lane)) - drafts;
        int const lane = (this_lane.sequence * 4 + this_lane.layer) * 4 + this_lane.head;
        for (int e = 0; e < scores.stride(); ++e) {
          float const expected = e < count ? 0.5f + static_cast<float>((lane * 64 + e) * 64 + count) : 0.5f;
          RC_ASSERT(scores.row(i, scores.stride())[as_size(e)] == expected);
        }
      }
    });
  }
}
