// SPDX-License-Identifier: Apache-2.0
// all_reduce: an executor of a group of ranks is given all the scores of a plan and no more; others are not asked.

#include "support/test.hpp"

namespace {

namespace kv = kvpolicy;

/// Doubles what it is given: the sum over two ranks that agree.
class two_ranks : public kv::host_executor {
 public:
  [[nodiscard]] static int ranks() { return 2; }
  void all_reduce(float* values, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) values[i] *= 2;
  }
};

}  // namespace

TEST_SUITE("ops/all_reduce") {
  TEST_CASE("every score of every segment is summed, and nothing behind them") {
    kv::lanes const batch{.sequences = 2, .layer_begin = 1, .layer_end = 4, .heads = 5, .capacity = 7};
    for (auto const decides : {kv::granularity::lane, kv::granularity::layer, kv::granularity::sequence}) {
      auto const all = static_cast<std::size_t>(kv::segments(batch, decides) * batch.capacity);
      std::vector<float> scores(300, 1);
      kv::score_view const view = kv::contiguous_scores(batch, decides, scores.data(), batch.capacity);
      kv::host_executor alone;
      kv::ops::all_reduce(alone, view);
      CHECK(scores == std::vector<float>(300, 1));
      two_ranks exec;
      kv::ops::all_reduce(exec, view);
      std::vector<float> sums(300, 1);
      for (std::size_t i = 0; i < all; ++i) sums[i] = 2;
      CHECK(scores == sums);
    }
  }
}
