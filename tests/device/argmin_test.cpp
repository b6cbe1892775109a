// SPDX-License-Identifier: Apache-2.0
// The device's argmin and select_if against the host's.

#include "device/forced.hpp"

namespace {

using namespace kvpolicy_test;

/// Forces some entries as if at random, and picks by score.
struct scattered {
  int tokens = 0;
  int percent = 0;  ///< of entries that are forced
  float least = 0;
  int unseen = 0;  ///< of seven lanes
  KVPOLICY_HD int budget(kv::lane, int) const { return tokens; }
  KVPOLICY_HD bool triggers(int count, int allowed) const { return count > allowed; }
  KVPOLICY_HD bool picks(float score) const { return score >= least; }
  KVPOLICY_HD bool unobserved(kv::lane this_lane) const {
    return unseen > 0 && (this_lane.sequence * 5 + this_lane.layer * 3 + this_lane.head) % 7 < unseen;
  }
  KVPOLICY_HD bool forces(kv::entry at) const { return forces_percent(at, percent); }
};

template <class Verb, class Rule>
bool agree(Verb const& verb, kv::score_view const& scores, Rule const& rule, device_executor& device) {
  owned_keep expected(scores), found(scores);
  if constexpr (std::same_as<Verb, kv::ops::argmin_t>) {
    expected.view().lists = found.view().lists = kv::side::dropped;
  }
  std::fill_n(found.view().indptr, scores.segments() + 1, -7);
  *found.view().report = {7, 7, 7, 7, 7};
  kv::host_executor host;
  device.reserve(kv::implementation<kv::ops::select_if_t, device_executor::backend>::scratch({}, scores.lanes));
  verb(host, scores, rule, expected.view());
  verb(device, scores, rule, found.view());
  device.check();
  return same_keep(expected, found);
}

void any_lanes() {
  int const layers = *rc::gen::inRange(1, 4);
  int const heads = *rc::gen::inRange(1, 5);
  int const bound = *rc::gen::element(33, 1, 31, 32, 40, 130, 700);
  dice random(any_seed());
  auto const decides = random.one_of<kv::granularity>({{}, {}, kv::granularity::layer, kv::granularity::sequence});
  bool const ragged = decides == kv::granularity::lane;
  std::vector<int> counts(as_size(2 * layers * heads), random.below(bound + 1));
  for (int& each : counts) each = !ragged ? each : random.chance(40) ? bound : random.below(bound + 1);
  owned_lanes lanes(2, layers, heads, bound, counts);
  if (random.chance(20)) lanes.set_drafts(0, *std::min_element(counts.begin(), counts.end()) > 0 ? 1 : 0);
  owned_scores scores(lanes.view(), decides);
  trouble const what = any_trouble();
  bool const zeros = random.chance(20);
  for (float& each : scores.all()) {
    each = zeros ? random.one_of<float>({0.0f, -0.0f, 1.0f}) : troubled_score(random, what);
  }
  scattered const rule{.tokens = random.one_of<int>({0, 1, random.below(bound + 1), bound}),
                       .percent = random.one_of<int>({0, 10, 60, 100}),
                       .least = random.one_of<float>({0.0f, 1.0f, -1.0f, -INFINITY}),
                       .unseen = random.one_of<int>({0, 3, 6, 7})};
  device_executor device({.segment_threads = random.one_of<int>({32, 64, 96, 128}),
                          .entries_of_a_selection = random.one_of<int>({0x7FFFFFFF, 1, 70, 1500})},
                         static_cast<std::uint64_t>(random.below(1000)));
  RC_ASSERT(agree(kv::ops::argmin, scores.view(), rule, device));
  RC_ASSERT(agree(kv::ops::argmin, scores.view(), between<scattered>{rule, random.below(9), random.below(9)}, device));
  RC_ASSERT(agree(kv::ops::select_if, scores.view(), rule, device));
}

TEST_SUITE("device/argmin") {
  TEST_CASE("every segment drops, or picks, what the host says, and the report is the host's") {
    holds("any lanes", any_lanes);
  }

  TEST_CASE("long rows: the last of the lowest, and whatever scores enough, in order") {
    constexpr int n = 4097;
    owned_lanes const lanes(1, 2, 1, n, {n, n - 1});
    owned_scores scores(lanes.view());
    dice random(3);
    for (float& each : scores.all()) each = troubled_score(random, trouble::ties);
    for (int const threads : {32, 256}) {
      device_executor device({.segment_threads = threads}, 7);
      CHECK(agree(kv::ops::argmin, scores.view(), scattered{.percent = 5}, device));
      CHECK(agree(kv::ops::select_if, scores.view(), scattered{.percent = 5}, device));
    }
  }

  TEST_CASE("lanes that decide together and hold different counts are told of, and drop nothing") {
    owned_lanes const lanes(2, 1, 3, 9, {4, 4, 4, 9, 8, 9});
    owned_scores scores(lanes.view(), kv::granularity::layer);
    owned_keep keep(scores.view());
    device_executor device(5);
    auto const error = [&] { return error_of([&] { device.check(); }); };
    device.reserve(kv::implementation<kv::ops::select_if_t, device_executor::backend>::scratch({}, lanes.view()));
    std::string const told = "decide: count (4) = 8, but lanes that decide together hold equally many entries";
    kv::ops::select_if(device, scores.view(), scattered{.least = 2}, keep.view());
    CHECK(error() == told);
    CHECK(keep.kept(0).empty());
    CHECK(keep.kept(1).size() == 9);
    keep.view().lists = kv::side::dropped;
    kv::ops::argmin(device, scores.view(), scattered{}, keep.view());
    CHECK(error() == told);
    CHECK(keep.kept(0) == std::vector<int>{3});
    CHECK(keep.kept(1).empty());
  }
}

}  // namespace
