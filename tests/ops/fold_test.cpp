// SPDX-License-Identifier: Apache-2.0
// fold: rows of lanes combined into rows of layers or tokens, in the order of the lanes.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

void folds_as_the_reference() {
  int const sequences = *rc::gen::inRange(1, 4);
  int const layers = *rc::gen::inRange(1, 4);
  int const heads = *rc::gen::inRange(1, 4);
  int const bound = *rc::gen::element(33, 1, 31, 40, 4100);
  bool const by_layer = any_bool();
  auto const how = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max);
  bool const troubled = any_bool();
  dice random(any_seed());
  int const per_segment = by_layer ? heads : layers * heads;
  std::vector<int> counts(as_size(sequences * layers * heads));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    counts[i] = i % as_size(per_segment) == 0 ? random.below(bound + 1) : counts[i - 1];
  }
  owned_lanes const lanes(sequences, layers, heads, bound, counts);
  auto const decides = by_layer ? kv::granularity::layer : kv::granularity::sequence;
  owned_scores fine(lanes.view());
  owned_scores coarse(lanes.view(), decides);
  for (float& each : fine.all()) {
    each = troubled ? troubled_score(random, trouble::ties) : static_cast<float>(random.between(-128, 128)) / 64.0f;
  }
  auto const before = as_row(fine.all());
  kv::host_executor exec(*rc::gen::element(1, 3));
  for (int layer = 0; layer < layers; ++layer) {
    bool const last = by_layer || layer + 1 == layers;
    kv::score_view part = fine.view();
    part.lanes = part.lanes.layers_only(layer, layer + 1);
    kv::ops::fold_step const step{how, by_layer || layer == 0, how == kv::reduction::mean && last ? per_segment : 1};
    kv::ops::fold(exec, part, step, coarse.view());
  }
  auto const after = as_row(fine.all());
  for (std::size_t i = 0; i < before.size(); ++i) {
    RC_ASSERT((before[i] == after[i] || (std::isnan(before[i]) && std::isnan(after[i]))));
  }
  for (int segment = 0; segment < coarse.view().segments(); ++segment) {
    int const count = counts[as_size(segment * per_segment)];
    reference::matrix rows;
    for (int lane = segment * per_segment; lane < (segment + 1) * per_segment; ++lane) {
      rows.push_back(as_row(fine.row(lane, count)));
    }
    auto const expected = reference::reduced(rows, static_cast<reference::reduction>(how), as_size(count));
    comparison const result = compare(coarse.row(segment, count), expected);
    RC_LOG() << "segment " << segment << ": " << result << '\n';
    RC_ASSERT(result.same);
    auto const whole = coarse.row(segment, coarse.stride());
    RC_ASSERT(std::all_of(whole.begin() + count, whole.end(), [](float each) { return each == 0.5f; }));
  }
}

}  // namespace

TEST_SUITE("ops/fold") {
  TEST_CASE("sums, means and maxima of lanes agree with the reference, NaN and infinities too") {
    holds("fold == reference, layer by layer", 300, folds_as_the_reference);
  }

  TEST_CASE("lanes have no last one") {
    owned_lanes const lanes(1, 1, 2, 2, {2, 2});
    owned_scores fine(lanes.view());
    owned_scores coarse(lanes.view(), kv::granularity::layer);
    kv::host_executor exec;
    CHECK(error_of([&] { kv::ops::fold(exec, fine.view(), kv::ops::fold_step{kv::reduction::last}, coarse.view()); }) ==
          "fold: how = last, but lanes have no order");
  }
}
