// SPDX-License-Identifier: Apache-2.0
// The device's fold against the host's, bit for bit.

#include "support/device.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// A batch whose lanes of a sequence hold equally many entries, folded layer by layer as reduce_lanes does.
struct folding {
  int sequences, layers, heads, bound;
  bool by_layer;
  kv::reduction how;
  std::uint64_t seed;
  bool at_once = false;  ///< all layers in one call

  template <class Executor>
  std::vector<float> operator()(Executor& exec) const {
    dice random(seed);
    std::vector<int> counts;
    for (int s = 0; s < sequences; ++s) {
      counts.insert(counts.end(), as_size(layers * heads), random.below(bound + 1));
    }
    owned_lanes const lanes(sequences, layers, heads, bound, counts);
    owned_scores fine(lanes.view());
    owned_scores coarse(lanes.view(), by_layer ? kv::granularity::layer : kv::granularity::sequence);
    for (float& each : fine.all()) each = troubled_score(random, trouble::ties);
    int const rows = by_layer ? heads : layers * heads;
    for (int layer = 0; layer < layers; layer += at_once ? layers : 1) {
      bool const last = by_layer || at_once || layer + 1 == layers;
      kv::score_view part = fine.view();
      if (!at_once) part.lanes = part.lanes.layers_only(layer, layer + 1);
      bool const divides = how == kv::reduction::mean && last;
      kv::ops::fold(exec, part, kv::ops::fold_step{how, by_layer || layer == 0, divides ? rows : 1}, coarse.view());
    }
    return coarse.all();
  }
};

TEST_SUITE("device/fold") {
  TEST_CASE("sums, means and maxima of lanes are the host's, NaN and infinities too") {
    holds("device == host", [] {
      folding const fold{*rc::gen::inRange(1, 4),
                         *rc::gen::inRange(1, 4),
                         *rc::gen::inRange(1, 4),
                         *rc::gen::element(33, 1, 31, 32, 200),
                         *rc::gen::arbitrary<bool>(),
                         *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max),
                         *rc::gen::inRange<std::uint64_t>(0, 1u << 20),
                         *rc::gen::arbitrary<bool>()};
      launch_numbers numbers;
      numbers.entry_threads = *rc::gen::element(32, 64, 128);
      kv::host_executor host;
      device_executor device(numbers, fold.seed);
      auto const found = fold(device);
      device.check();
      auto const expected = fold(host);
      RC_ASSERT(found.size() == expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        bool const both_nan = found[i] != found[i] && expected[i] != expected[i];
        RC_ASSERT((both_nan || std::memcmp(&found[i], &expected[i], sizeof(float)) == 0));
      }
    });
  }
}

}  // namespace
