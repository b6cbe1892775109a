// SPDX-License-Identifier: Apache-2.0
// The device's redundancy and normalised scores against the host's, over every shape, memory layout and element type.

#include "support/device.hpp"
#include "support/test.hpp"

namespace device_redundancy_test {

using namespace kvpolicy_test;

launch_numbers any_numbers() {
  launch_numbers numbers;
  numbers.entry_threads = *rc::gen::element(64, 32, 128);
  numbers.entries_of_a_block = *rc::gen::element(128, 512);
  return numbers;
}

/// Redundancies by way of all its verbs.
template <class Executor>
std::vector<float> redundancies(Executor& exec, mock_cache& cache, kv::redundancy_options const& how) {
  using backend = typename Executor::backend;
  kv::keys const keys = kv::keys_of(cache.view());
  auto const reserve = [&]<class... Verbs>(kv::verbs<Verbs...>) {
    (exec.reserve(kv::detail::scratch_of_verb<Verbs, backend>(cache.model(), cache.lanes())), ...);
  };
  reserve(kv::verbs<kv::ops::mean_row_t, kv::ops::logits_t, kv::ops::redundancy_t>{});
  std::int64_t const dims = keys.rows.channels, layer = dims * cache.model().kv_heads;
  std::vector<float> means(static_cast<std::size_t>(dims * cache.lane_count()));
  kv::by_lane<float> const anchor{means.data(), layer * cache.model().layers, layer, dims};
  owned_scores norms(cache.lanes()), out(cache.lanes());
  kv::ops::mean_row(exec, cache.lanes(), keys, {.unit = true, .inverse_norms = norms.view().rows}, anchor);
  kv::ops::logits(exec, keys, kv::one_row_a_lane(anchor, keys.rows.channels, cache.lanes()), {.scale = 1.0f},
                  kv::replaced{}, out.view());
  kv::ops::map(exec, out.view(), kv::r_kv::over_norm{norms.view().rows});
  kv::ops::redundancy(exec, keys, norms.view().rows, how, out.view());
  if constexpr (requires { exec.check(); }) exec.check();
  return out.all();
}

bool alike(std::vector<float> const& found, std::vector<float> const& expected, double slack) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    auto const a = static_cast<double>(found[i]), b = static_cast<double>(expected[i]);
    if (a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= slack) continue;
    RC_LOG() << "number " << i << ": " << a << ", expected " << b << '\n';
    return false;
  }
  return true;
}

/// The least distance of a cosine of any lane to the threshold.
double margin(mock_cache& cache, double threshold) {
  double least = 1;
  for (int i = 0; i < cache.lane_count(); ++i) {
    auto const keys = cache.rows(of::keys, cache.lane_at(i), cache.committed(cache.lane_at(i)));
    for (auto const& one : keys) {
      for (auto const& other : keys) {
        double const norms = std::sqrt(reference::dot(one, one) * reference::dot(other, other));
        if (norms > 0) least = std::min(least, std::fabs(reference::dot(one, other) / norms - threshold));
      }
    }
  }
  return least;
}

}  // namespace device_redundancy_test

TEST_SUITE("device/redundancy") {
  using namespace device_redundancy_test;

  TEST_CASE("redundancies are the host's, and no number of a launch changes a bit") {
    holds("device == host, redundancy", 40, [] {
      mock_options shape = any_mock(6);
      shape.skew = 0;
      shape.rows = *rc::gen::element(content::smooth, content::few);
      RC_LOG() << shape << '\n';
      mock_cache cache(shape);
      fill(cache, true);
      kv::redundancy_options const how{*rc::gen::element(0.03571f, 0.48713f, 0.94129f),
                                       *rc::gen::element(true, true, false)};
      kv::host_executor host;
      device_executor device(any_numbers(), shape.seed), other(any_numbers(), shape.seed + 1);
      auto const found = redundancies(device, cache, how);
      RC_ASSERT(alike(found, redundancies(other, cache, how), 0));
      if (how.spare_newest && margin(cache, static_cast<double>(how.threshold)) < 1e-5) return;
      RC_ASSERT(alike(found, redundancies(host, cache, how), 2e-5));
    });
  }

  TEST_CASE("normalised scores are the host's") {
    holds("device == host, normalise", 40, [] {
      int const bound = *rc::gen::element(1, 31, 32, 33, 500);
      dice random(*rc::gen::inRange<std::uint64_t>(0, 1u << 20));
      std::vector<int> counts;
      for (int i = 0; i < 6; ++i) counts.push_back(random.chance(50) ? bound : random.below(bound + 1));
      owned_lanes const lanes(1, 2, 3, bound, counts);
      owned_scores on_device(lanes.view()), on_host(lanes.view());
      for (std::size_t i = 0; i < on_host.all().size(); ++i) {
        float const score = random.chance(10)   ? -std::numeric_limits<float>::infinity()
                            : random.chance(20) ? static_cast<float>(random.below(3))
                                                : static_cast<float>(random.real(10));
        on_host.all()[i] = on_device.all()[i] = score;
      }
      auto const how = *rc::gen::element(kv::normalising::sum, kv::normalising::min_max, kv::normalising::z,
                                         kv::normalising::softmax, kv::normalising::rank);
      kv::normalised_blocks blocks{*rc::gen::element(how == kv::normalising::rank ? 600 : 0, 1, 16, 33, 400),
                                   *rc::gen::element(0, 0, 1, 40)};
      blocks.of_layer = blocks.size == 0 && random.chance(50);
      blocks.less = random.below(2);
      kv::host_executor host;
      device_executor device(any_numbers(), 1);
      kv::ops::normalise(host, how, on_host.view(), blocks);
      kv::ops::normalise(device, how, on_device.view(), blocks);
      device.check();
      RC_ASSERT(alike(on_device.all(), on_host.all(), how == kv::normalising::sum ? 1e-2 : 1e-5));
    });
  }
}
