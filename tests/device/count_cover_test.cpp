// SPDX-License-Identifier: Apache-2.0
// count_cover on the host and on the emulated device against sums in the order of the scores.

#include "reference/pooled_attention.hpp"
#include "support/device.hpp"
#include "support/test.hpp"

namespace count_cover_test {

using namespace kvpolicy_test;

struct not_third {
  KVPOLICY_HD bool operator()(kv::entry at) const { return at.position % 3 != 2; }
};
struct limit_of_lane {
  kv::by_lane<double const> limits;
  KVPOLICY_HD double operator()(kv::lane one) const { return *limits.row(one); }
};

template <class Executor>
std::vector<float> counts(Executor& exec, kv::score_view const& scores, std::vector<double> const& limits) {
  std::vector<float> made(limits.size(), -1.0f);
  kv::ops::count_cover(exec, scores, not_third{}, limit_of_lane{{limits.data(), 0, scores.lanes.heads, 1}},
                       kv::by_lane<float>{made.data(), 0, scores.lanes.heads, 1});
  if constexpr (requires { exec.check(); }) exec.check();
  return made;
}

}  // namespace count_cover_test

TEST_SUITE("device/count_cover") {
  using namespace count_cover_test;

  TEST_CASE("as many scores are counted as have a sum below the limit") {
    holds("count_cover", [] {
      int const bound = *rc::gen::element(1, 2, 31, 33, 300);
      dice random(*rc::gen::inRange<std::uint64_t>(0, 1u << 20));
      std::vector<int> held;
      for (int i = 0; i < 6; ++i) held.push_back(random.chance(50) ? bound : random.below(bound + 1));
      owned_lanes const lanes(1, 2, 3, bound, held);
      owned_scores scores(lanes.view());
      int const distinct = *rc::gen::element(1, 3, 1000), special = *rc::gen::element(0, 5);
      double const size = *rc::gen::element(1.0, 1e-30, 1e9);
      for (float& each : scores.all()) {
        each = static_cast<float>(size * random.below(distinct + 1) / distinct);
        float const others[] = {-0.0f, NAN, -1.0f, -std::numeric_limits<float>::infinity()};
        if (random.chance(special)) each = others[random.below(4)];
      }
      std::vector<double> limits;
      std::vector<float> expected;
      double margin = std::numeric_limits<double>::infinity();
      for (int i = 0; i < 6; ++i) {
        kv::lane const one = lanes.view().at(i);
        reference::row taken;
        double all = 0;
        for (int e = 0; e < held[as_size(i)]; ++e) {
          float const score = scores.view().row(i)[e];
          bool const counts = not_third{}(kv::entry{one, e, held[as_size(i)], lanes.view().position.row(one)[e], 0});
          if (counts && score >= 0) taken.push_back(static_cast<double>(score)), all += taken.back();
        }
        limits.push_back(all * *rc::gen::element(0.37, 0.9, 1.5, 0.0, -0.5, 0.01));
        if (random.chance(5)) limits.back() = std::nan("");
        expected.push_back(static_cast<float>(reference::covered(taken, limits.back(), margin) * (limits.back() > 0)));
      }
      if (margin < 1e-12 * size) return;  // rounding decides
      kv::host_executor host(*rc::gen::element(1, 3));
      device_executor device({}, 1);
      RC_ASSERT(counts(host, scores.view(), limits) == expected);
      RC_ASSERT(counts(device, scores.view(), limits) == expected);
    });
  }

  TEST_CASE("the last one of equal scores that still fits, and what is refused") {
    owned_lanes const lanes(1, 1, 1, 4, {4});
    owned_scores scores(lanes.view());
    kv::host_executor exec;
    auto const counted = [&](std::vector<float> const& of, double limit) {
      std::copy(of.begin(), of.end(), scores.all().begin());
      return static_cast<int>(counts(exec, scores.view(), {limit})[0]);
    };
    CHECK(counted({0.25f, 9, 0.25f, 0.25f}, 0.5) == 1);  // the second is left out, and the crossing one too
    CHECK(counted({0.25f, 9, 0.25f, 0.25f}, 0.51) == 2);
    CHECK(counted({0.25f, 9, 0.25f, 0.25f}, 0.76) == 3);
    CHECK(counted({0, 0, 0, 0}, 1) == 3);
    CHECK(counted({0, 0, 0, 0}, 0) == 0);
    auto const call = [&] {
      kv::ops::count_cover(exec, scores.view(), not_third{}, limit_of_lane{}, kv::by_lane<float>{});
    };
    CHECK(error_of(call) == "count_cover: out = null, but it has a number for each segment");
  }
}
