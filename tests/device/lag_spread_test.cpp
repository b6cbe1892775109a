// SPDX-License-Identifier: Apache-2.0
// The device's lag_spread and row_stats against the host's, over every shape, memory layout and element type.

#include "support/device.hpp"
#include "support/test.hpp"

namespace lag_spread_on_device_test {

using namespace kvpolicy_test;

launch_numbers any_numbers() {
  launch_numbers numbers;
  numbers.entry_threads = *rc::gen::element(64, 32, 128);
  numbers.entries_of_a_block = *rc::gen::element(128, 512);
  return numbers;
}

bool alike(std::vector<float> const& found, std::vector<float> const& expected, double slack) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    auto const a = static_cast<double>(found[i]), b = static_cast<double>(expected[i]);
    if (a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= slack * std::max(1.0, std::abs(b))) continue;
    RC_LOG() << "number " << i << ": " << a << ", expected " << b << '\n';
    return false;
  }
  return true;
}

struct old_plus_twice {
  KVPOLICY_HD float operator()(float old, float now) const { return old + 2 * now; }
};
struct even_positions {
  KVPOLICY_HD bool operator()(kv::entry at) const { return at.position % 2 == 0; }
};

template <class Executor>
std::vector<float> shares(Executor& exec, mock_cache& cache, bool keys, kv::lagged_blocks const& blocks) {
  using backend = typename Executor::backend;
  if constexpr (std::same_as<backend, kv::host>) {
    exec.reserve(kv::implementation<kv::ops::lag_spread_t, backend>::scratch(cache.model(), cache.options().bound));
  }
  owned_scores out(cache.lanes());
  kv::row_view const rows = keys ? kv::row_view(kv::keys_of(cache.view())) : kv::row_view(kv::values_of(cache.view()));
  kv::ops::lag_spread(exec, rows, blocks, old_plus_twice{}, out.view());
  if constexpr (requires { exec.check(); }) exec.check();
  return out.all();
}

}  // namespace lag_spread_on_device_test

TEST_SUITE("device/lag_spread") {
  using namespace lag_spread_on_device_test;

  TEST_CASE("shares are the host's, and the same for any launch") {
    holds("device == host, lag_spread", 40, [] {
      mock_options shape = any_mock(6);
      shape.skew = 0;
      shape.rows = *rc::gen::element(content::smooth, content::few);
      RC_LOG() << shape << '\n';
      mock_cache cache(shape);
      fill(cache, true);
      kv::lagged_blocks const blocks{*rc::gen::element(1, 2, 7, 16), *rc::gen::element(0, 1, 4)};
      for (bool const keys : {true, false}) {
        kv::host_executor host;
        device_executor device(any_numbers(), shape.seed), other(any_numbers(), shape.seed + 1);
        auto const found = shares(device, cache, keys, blocks);
        RC_ASSERT(alike(found, shares(other, cache, keys, blocks), 0));
        RC_ASSERT(alike(found, shares(host, cache, keys, blocks), 1e-3));
      }
    });
  }

  TEST_CASE("statistics are the host's") {
    holds("device == host, row_stats", 40, [] {
      int const bound = *rc::gen::element(1, 31, 33, 500);
      dice random(*rc::gen::inRange<std::uint64_t>(0, 1u << 20));
      std::vector<int> counts;
      for (int i = 0; i < 6; ++i) counts.push_back(random.chance(50) ? bound : random.below(bound + 1));
      owned_lanes const lanes(1, 2, 3, bound, counts);
      owned_scores scores(lanes.view());
      int const nan = *rc::gen::element(0, 1);
      for (float& each : scores.all()) each = random.chance(nan) ? NAN : static_cast<float>(random.real(10));
      kv::score_view view = scores.view();
      view.decides = *rc::gen::element(kv::granularity::lane, kv::granularity::layer);
      auto const of =
          *rc::gen::element(kv::statistic::sum, kv::statistic::mean, kv::statistic::highest, kv::statistic::variance);
      std::vector<float> on_host(6, -7.0f), on_device(6, -7.0f);
      kv::host_executor host;
      device_executor device(any_numbers(), 1);
      kv::ops::row_stats(host, view, even_positions{}, of, {on_host.data(), 0, 3, 1});
      kv::ops::row_stats(device, view, even_positions{}, of, {on_device.data(), 0, 3, 1});
      device.check();
      RC_ASSERT(alike(on_device, on_host, 1e-6));
    });
  }
}
