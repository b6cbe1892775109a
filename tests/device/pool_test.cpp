// SPDX-License-Identifier: Apache-2.0
// The device's pool against the host's, bit for bit.

#include "support/device.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// What the executor's pool leaves of scores that `seed` makes.
template <class Executor>
std::vector<float> pooled(Executor& exec, owned_lanes const& lanes, kv::pooling const& by, int tail, bool ties,
                          std::uint64_t seed) {
  owned_scores scores(lanes.view());
  dice random(seed);
  for (float& each : scores.all()) {
    each = ties ? troubled_score(random, trouble::ties) : static_cast<float>(random.real(10));
  }
  using backend = typename Executor::backend;
  exec.reserve(kv::detail::scratch_of_verb<kv::ops::pool_t, backend>(kv::shape{}, lanes.view()));
  kv::ops::pool(exec, by, scores.view(), tail);
  return scores.all();
}

TEST_SUITE("device/pool") {
  TEST_CASE("pools are the host's, over all seams of pieces, plateaus and NaN") {
    holds("device == host", [] {
      int const bound = *rc::gen::element(33, 1, 2, 31, 32, 200, 400);
      auto const seed = *rc::gen::inRange<std::uint64_t>(0, 1u << 20);
      dice random(seed);
      std::vector<int> counts;
      for (int i = 0; i < 4; ++i) counts.push_back(random.chance(50) ? bound : random.below(bound + 1));
      owned_lanes const lanes(2, 1, 2, bound, counts);
      int const width = *rc::gen::element(1, 3, 7, 63, 201, 2147483647);
      kv::pooling const by = *rc::gen::element<kv::pooling>(kv::max_pool{width}, kv::avg_pool{width}, kv::no_pool{});
      int const tail = *rc::gen::element(0, 1, 16, 97, 500);
      bool const ties = *rc::gen::arbitrary<bool>();
      launch_numbers numbers;
      numbers.entry_threads = *rc::gen::element(32, 64, 128);
      numbers.entries_of_a_block = *rc::gen::element(8, 96, 1024);
      kv::host_executor host;
      device_executor device(numbers, seed);
      auto const found = pooled(device, lanes, by, tail, ties, seed);
      device.check();
      RC_ASSERT(same_bits(found, pooled(host, lanes, by, tail, ties, seed)));
    });
  }

  TEST_CASE("4097 entries are pooled in many pieces as in one") {
    owned_lanes const lanes(4097);
    kv::host_executor host;
    device_executor device;
    auto const found = pooled(device, lanes, kv::avg_pool{5}, 32, false, 5);
    device.check();
    CHECK(same_bits(found, pooled(host, lanes, kv::avg_pool{5}, 32, false, 5)));
  }
}

}  // namespace
