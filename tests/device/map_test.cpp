// SPDX-License-Identifier: Apache-2.0
// The device's map and row_norm against the host's.

#include "support/device.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

struct of_everything {
  KVPOLICY_HD float operator()(float score, kv::entry at) const {
    return 2 * score + static_cast<float>(at.ordinal + 7 * at.position + 13 * at.count + at.lane.layer + at.lane.head);
  }
};

struct of_lane {
  KVPOLICY_HD int operator()(kv::lane_entries const& of) const {
    int const last = of.count > 0 ? of.position[of.count - 1] : -1;
    return of.count + 100 * last + 7 * of.lane.layer + 3 * of.lane.head + of.lane.sequence + of.budget;
  }
};

TEST_SUITE("device/map") {
  TEST_CASE("every lane's number is what the host says") {
    holds("any lanes", [] {
      mock_options shape = any_mock();
      filled_cache cache(shape);
      auto const lanes = as_size(cache.lane_count());
      std::vector<int> expected(lanes, -5), found(lanes, -5);
      kv::host_executor host;
      device_executor device(shape.seed);
      auto const of = [&](std::vector<int>& numbers) {
        std::int64_t const heads = cache.model().kv_heads;
        return kv::by_lane<int>{numbers.data(), heads * cache.model().layers, heads, 1};
      };
      kv::ops::map_lanes(host, cache.lanes(), of_lane{}, of(expected));
      kv::ops::map_lanes(device, cache.lanes(), of_lane{}, of(found));
      RC_ASSERT(expected == found);
      for (kv::lane const one : lanes_of(cache)) {
        int const count = cache.lanes().committed(one);
        int const last = count > 0 ? cache.lanes().position.row(one)[count - 1] : -1;
        int const all = count + 100 * last + 7 * one.layer + 3 * one.head + one.sequence;
        RC_ASSERT(expected[as_size(cache.lanes().index(one))] == all);
      }
    });
  }

  TEST_CASE("every score becomes what the host says") {
    holds("any lanes", [] {
      mock_options shape = any_mock();
      filled_cache cache(shape);
      std::size_t const capacity = as_size(cache.lane_count()) * as_size(shape.bound);
      std::vector<float> expected(capacity, 3.0f), found(capacity, 3.0f);
      kv::host_executor host;
      device_executor device;
      kv::ops::map(host, kv::contiguous_scores(cache.lanes(), kv::granularity::lane, expected.data(), shape.bound),
                   of_everything{});
      kv::ops::map(device, kv::contiguous_scores(cache.lanes(), kv::granularity::lane, found.data(), shape.bound),
                   of_everything{});
      RC_ASSERT(expected == found);
    });
  }

  TEST_CASE("norms of keys are the host's to the last bits") {
    holds("any rows", [] {
      mock_options shape = any_mock();
      shape.skew = 0;
      filled_cache cache(shape);
      std::size_t const capacity = as_size(cache.lane_count()) * as_size(shape.bound);
      std::vector<float> expected(capacity, 3.0f), found(capacity, 3.0f);
      kv::host_executor host;
      device_executor device(shape.seed);
      auto const of = [&](std::vector<float>& rows) {
        return kv::contiguous_scores(cache.lanes(), kv::granularity::lane, rows.data(), shape.bound);
      };
      kv::ops::row_norm(host, kv::keys_of(cache.view()), kv::multiplied{}, of(expected));
      kv::ops::row_norm(device, kv::keys_of(cache.view()), kv::multiplied{}, of(found));
      for (std::size_t i = 0; i < capacity; ++i) {
        RC_ASSERT(std::abs(expected[i] - found[i]) <= 1e-6f * std::abs(expected[i]));
      }
    });
  }
}

}  // namespace
