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

/// The maximum over two ranks, the other of which has the score 3 everywhere.
class two_other_ranks : public two_ranks {
 public:
  static void all_reduce_max(float* values, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) values[i] = values[i] >= 3 || values[i] != values[i] ? values[i] : 3;
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
      CHECK_THROWS_AS(kv::ops::all_reduce(exec, view, kv::reduction::max), kv::invalid_argument);
      CHECK(scores == sums);
      two_other_ranks others;
      kv::ops::all_reduce(others, view, kv::reduction::max);
      for (std::size_t i = 0; i < all; ++i) sums[i] = 3;
      CHECK(scores == sums);
      kv::ops::all_reduce(alone, view, kv::reduction::max);
      CHECK(scores == sums);
    }
  }

  TEST_CASE("a reduction that ranks do not make is refused by name") {
    float numbers[] = {1, 2};
    two_ranks sums_only;
    two_other_ranks exec;
    kv::host_executor alone;
    CHECK(kvpolicy_test::error_of([&] { kv::ops::all_reduce(sums_only, numbers, 2, kv::reduction::max); }) ==
          "all_reduce: reduction = max, but the executor has no member all_reduce_max, and the heads are on 2 ranks");
    for (auto const how : {kv::reduction::mean, kv::reduction::last}) {
      std::string const line =
          "all_reduce: reduction = " + kv::to_string(how) + ", but ranks are reduced by sum or by max";
      CHECK(kvpolicy_test::error_of([&] { kv::ops::all_reduce(exec, numbers, 2, how); }) == line);
      CHECK(kvpolicy_test::error_of([&] { kv::ops::all_reduce(alone, numbers, 2, how); }) == line);
    }
    CHECK(numbers[0] == 1.0f);
    CHECK(numbers[1] == 2.0f);
  }
}
