// SPDX-License-Identifier: Apache-2.0
// pool against the reference: edges, tails, plateaus and NaN.

#include "support/masses.hpp"

TEST_SUITE("ops/pool") {
  using namespace kvpolicy_test;

  TEST_CASE("agrees with the reference on ragged lanes, and writes nothing but committed entries") {
    holds("pool == reference", 200, [] {
      ragged_scores of(*rc::gen::element(33, 1, 2, 31, 32, 40, 200));
      auto& [bound, random, counts, lanes, scores] = of;
      bool const ties = any_bool();
      of.draw([&] { return ties ? troubled_score(random, trouble::ties) : static_cast<float>(random.real(10)); });
      std::vector<float> const before = scores.all();
      int const width = *rc::gen::element(1, 3, 5, 7, 63, 101);
      int const tail = *rc::gen::element(0, 1, 2, 16, 32, 100);
      kv::pooling const by = *rc::gen::element<kv::pooling>(kv::max_pool{width}, kv::avg_pool{width}, kv::no_pool{});
      auto const most = *rc::gen::element(kv::best_isa(), kv::isa::avx2, kv::isa::portable);
      kv::host_executor exec(*rc::gen::element(1, 3), most);
      exec.reserve(kv::implementation<kv::ops::pool_t, kv::host>::scratch({}, bound));
      kv::ops::pool(exec, by, scores.view(), tail);
      for (int i = 0; i < lanes.view().size(); ++i) {
        auto const first = before.begin() + static_cast<std::ptrdiff_t>(i) * scores.stride();
        reference::row const untouched = as_row(std::vector<float>(first, first + scores.stride()));
        auto const count = static_cast<std::ptrdiff_t>(lanes.count(i));
        reference::row expected =
            reference::pooled(reference::row(untouched.begin(), untouched.begin() + count), in_double(by), tail);
        expected.insert(expected.end(), untouched.begin() + count, untouched.end());
        // A mean of numbers of both signs is as exact as its terms, which are below 10.
        comparison const result = compare(scores.row(i, scores.stride()), expected, 10);
        RC_LOG() << "lane " << i << ", " << kv::to_string(by) << ", tail " << tail << ": " << result;
        RC_ASSERT(result.same);
      }
    });
  }

  TEST_CASE("the maximum passes scores on bit for bit, so that plateaus are exact ties") {
    owned_lanes const lanes(6);
    owned_scores scores(lanes.view());
    float const given[] = {.1f, .2f, .3f, .1f, .7f, .1f};
    std::copy(std::begin(given), std::end(given), scores.row(0, 6).begin());
    kv::host_executor exec;
    exec.reserve(1024);
    kv::ops::pool(exec, kv::max_pool{3}, scores.view(), 0);
    CHECK(std::vector<float>(scores.row(0, 6).begin(), scores.row(0, 6).end()) ==
          std::vector<float>{.2f, .3f, .3f, .7f, .7f, .7f});
  }

  TEST_CASE("a pool as wide as an int reaches everything") {
    owned_lanes const lanes(3);
    owned_scores scores(lanes.view());
    for (int e = 0; e < 3; ++e) scores.row(0, 3)[as_size(e)] = static_cast<float>(e);
    kv::host_executor exec;
    exec.reserve(1024);
    kv::ops::pool(exec, kv::max_pool{2147483647}, scores.view(), 0);
    for (float const each : scores.row(0, 3)) CHECK(each == 2.0f);
  }

  TEST_CASE("refuses even widths and negative tails, and prints as it is written in a spec") {
    owned_lanes const lanes(3);
    owned_scores scores(lanes.view());
    kv::host_executor exec;
    CHECK(error_of([&] { kv::ops::pool(exec, kv::max_pool{4}, scores.view(), 0); }) ==
          "pool: width = 4, but a pool has an odd width");
    CHECK(error_of([&] { kv::ops::pool(exec, kv::avg_pool{-1}, scores.view(), 0); }) ==
          "pool: width = -1, but a pool has an odd width");
    CHECK(error_of([&] { kv::ops::pool(exec, kv::avg_pool{3}, scores.view(), -1); }) ==
          "pool: tail = -1, but a count cannot be negative");
    CHECK(kv::to_string(kv::pooling{kv::max_pool{7}}) == "max:7");
    CHECK(kv::to_string(kv::pooling{kv::avg_pool{5}}) == "avg:5");
    CHECK(kv::to_string(kv::pooling{}) == "none");
  }
}
