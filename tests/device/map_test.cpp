// The device's map and row_norm against the host's.

#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <kvpolicy/kvpolicy.hpp>
#include <kvpolicy/ops/cuda/map.hpp>

#include "support/device.hpp"
#include "support/holds.hpp"
#include "support/mock_batch.hpp"
#include "support/mock_cache.hpp"

namespace {

namespace kv = kvpolicy;
using namespace kvpolicy_test;

struct of_everything {
  KVPOLICY_HD float operator()(float score, kv::entry at) const {
    return 2 * score + static_cast<float>(at.ordinal + 7 * at.position + 13 * at.count + at.lane.layer + at.lane.head);
  }
};

TEST_SUITE("device/map") {
  TEST_CASE("every score becomes what the host says") {
    holds("any lanes", [] {
      mock_options shape = any_mock();
      mock_cache cache(shape);
      fill(cache, true);
      std::size_t const capacity = static_cast<std::size_t>(cache.lane_count()) * static_cast<std::size_t>(shape.bound);
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
      mock_cache cache(shape);
      fill(cache, true);
      std::size_t const capacity = static_cast<std::size_t>(cache.lane_count()) * static_cast<std::size_t>(shape.bound);
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
