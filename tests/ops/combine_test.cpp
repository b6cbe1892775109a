// SPDX-License-Identifier: Apache-2.0
// What a verb does with the value that stands there already: the shipped ways to combine, and pools of any width.

#include "laws/refusal.hpp"

namespace {

using namespace kvpolicy_test;

/// Scores of a lane of two entries with norms 5 and 13, which were 2 and -3 before.
template <class Combine>
std::vector<float> combined(Combine const& how) {
  mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 2}, .bound = 4});
  cache.put({0, 0, 0}, {0, 1});
  cache.write(of::keys, {0, 0, 0}, 0, {3, -4});
  cache.write(of::keys, {0, 0, 0}, 1, {-5, 12});
  kv::host_executor exec;
  std::vector<float> scores = {2, -3, 7, 7};
  kv::ops::row_norm(exec, kv::keys_of(cache.view()), how,
                    kv::contiguous_scores(cache.lanes(), kv::granularity::lane, scores.data(), 4));
  return scores;
}

}  // namespace

TEST_SUITE("ops/row_norm") {
  TEST_CASE("a norm replaces what stood there, its negative does, or it is multiplied by it") {
    CHECK(combined(kv::replaced{}) == std::vector<float>{5, 13, 7, 7});
    CHECK(combined(kv::negated{}) == std::vector<float>{-5, -13, 7, 7});
    CHECK(combined(kv::multiplied{}) == std::vector<float>{10, -39, 7, 7});
  }
}

TEST_SUITE("ops/fold") {
  TEST_CASE("a fold is the first unless it is said to go on") { CHECK(kv::ops::fold_step{}.first); }
}

TEST_SUITE("ops/pool") {
  TEST_CASE("pools of a width that is not odd and positive are refused, and so is a tail that is negative") {
    owned_lanes lanes(4);
    std::vector<float> scores = {1, 2, 3, 4};
    kv::score_view const view =
        kv::contiguous_scores(lanes.view(), kv::granularity::lane, scores.data(), lanes.view().capacity);
    kv::host_executor exec;
    auto const refusal = [&](kv::pooling const& by, int tail) {
      return error_of([&] { kv::ops::pool(exec, by, view, tail); });
    };
    for (int const width : {-3, -1, 0, 2, 4}) {
      std::string const text = "pool: width = " + std::to_string(width) + ", but a pool has an odd width";
      CHECK(refusal(kv::max_pool{width}, 0) == text);
      CHECK(refusal(kv::avg_pool{width}, 0) == text);
    }
    CHECK(refusal(kv::max_pool{3}, -1).starts_with("pool: tail = -1, but"));
    CHECK(scores == std::vector<float>{1, 2, 3, 4});
  }

  TEST_CASE("a pooling reads what it prints, and nothing else") {
    kv::pooling read;
    for (std::string const text : {"none", "max:7", "avg:3"}) {
      CHECK(kv::read_text(text, read));
      CHECK(kv::to_string(read) == text);
    }
    CHECK(kv::read_text("max:7", read));
    for (std::string const text : {"", "max", "max:", "max:x", "avg:3x", "min:3", "max:99999999999", "non", "nonee"}) {
      CHECK(!kv::read_text(text, read));
      CHECK(read == kv::pooling(kv::max_pool{7}));
    }
  }
}
