// SPDX-License-Identifier: Apache-2.0
// sort_scores on the host and on the emulated device against std::sort.

#include "support/device.hpp"
#include "support/test.hpp"

namespace sort_scores_test {

using namespace kvpolicy_test;

/// The rows of all lanes after the verb, whose places behind the committed entries must not change.
template <class Executor>
std::vector<float> sorted(Executor& exec, mock_cache& cache, kv::granularity decides, std::vector<float> scores) {
  kv::ops::sort_scores(exec, kv::contiguous_scores(cache.lanes(), decides, scores.data(), cache.options().bound));
  if constexpr (requires { exec.check(); }) exec.check();
  return scores;
}

/// Whether a score stands before another one: NaN is behind all, and both zeros are equal.
bool higher(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return !std::isnan(a) && std::isnan(b);
  return a > b;
}

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

}  // namespace sort_scores_test

TEST_SUITE("device/sort_scores") {
  using namespace sort_scores_test;

  TEST_CASE("scores of each segment descend, NaN is last, and nothing else changes") {
    holds("sort_scores", 60, [] {
      mock_options shape = any_mock(6);
      shape.bound = *rc::gen::element(shape.bound, 1, 2, 63, 64, 65, 300);
      shape.shared_entries = true;
      RC_LOG() << shape << '\n';
      mock_cache cache(shape);
      fill(cache, true);
      auto const decides = *rc::gen::element(kv::granularity::lane, kv::granularity::layer);
      dice random(*rc::gen::inRange<std::uint64_t>(1, 1000));
      int const values = *rc::gen::element(3, 1000);
      std::vector<float> scores(as_size(cache.lane_count() * shape.bound));
      constexpr float infinity = std::numeric_limits<float>::infinity();
      float const special[] = {0.0f, -0.0f, infinity, -infinity, std::nanf("")};
      for (float& each : scores) {
        int const drawn = random.below(values + 5);
        each = drawn < 5 ? special[drawn] : static_cast<float>(drawn - values / 2) / 8.0f;
      }
      kv::host_executor host(*rc::gen::element(1, 3));
      device_executor device({}, shape.seed);
      auto const on_host = sorted(host, cache, decides, scores), on_device = sorted(device, cache, decides, scores);
      kv::score_view const view = kv::contiguous_scores(cache.lanes(), decides, scores.data(), shape.bound);
      for (int s = 0; s < view.segments(); ++s) {
        float* const row = view.row(s);
        std::sort(row, row + cache.committed(view.lane_of(s)), higher);
      }
      for (std::size_t i = 0; i < scores.size(); ++i) {
        RC_ASSERT(same(on_host[i], scores[i]));
        RC_ASSERT(same(on_device[i], scores[i]));
      }
    });
  }
}
