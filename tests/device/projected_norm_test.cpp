// SPDX-License-Identifier: Apache-2.0
// The device's norms of projected values against the host's, over every shape, memory layout and element type.

#include "support/device.hpp"
#include "support/projection.hpp"
#include "support/test.hpp"

namespace device_projected_norm_test {

using namespace kvpolicy_test;

launch_numbers any_numbers() {
  launch_numbers numbers;
  numbers.entry_threads = *rc::gen::element(64, 32, 128);
  numbers.entries_of_a_block = *rc::gen::element(128, 512);
  return numbers;
}

template <class Executor>
std::vector<float> norms_of(Executor& exec, mock_cache& cache, mock_projection const& by, kv::norm_of_row norm) {
  using backend = typename Executor::backend;
  exec.reserve(kv::detail::scratch_of_verb<kv::ops::projected_norm_t, backend>(cache.model(), cache.lanes()));
  owned_scores out(cache.lanes());
  kv::ops::projected_norm(exec, kv::values_of(cache.view()), by.view(), {norm}, kv::multiplied{}, out.view());
  if constexpr (requires { exec.check(); }) exec.check();
  return out.all();
}

bool alike(std::vector<float> const& found, std::vector<float> const& expected, double slack) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    auto const a = static_cast<double>(found[i]), b = static_cast<double>(expected[i]);
    if (a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= slack * (1 + std::abs(b))) continue;
    RC_LOG() << "number " << i << ": " << a << ", expected " << b << '\n';
    return false;
  }
  return true;
}

}  // namespace device_projected_norm_test

TEST_SUITE("device/projected_norm") {
  using namespace device_projected_norm_test;

  TEST_CASE("norms are the host's, and no number of a launch changes a bit") {
    holds("device == host, projected_norm", 40, [] {
      mock_options shape = any_mock(6);
      shape.skew = 0;
      shape.rows = *rc::gen::element(content::smooth, content::few, content::troubled);
      RC_LOG() << shape << '\n';
      mock_cache cache(shape);
      fill(cache, true);
      mock_projection const by(cache.model(), *rc::gen::element(kv::codec::f32, kv::codec::f16, kv::codec::bf16),
                               *rc::gen::element(1, 5, 32, 33, 70), *rc::gen::element(0, 0, 8), shape.seed);
      auto const norm = *rc::gen::element(kv::norm_of_row::l1, kv::norm_of_row::l2);
      kv::host_executor host;
      device_executor device(any_numbers(), shape.seed), other(any_numbers(), shape.seed + 1);
      auto const found = norms_of(device, cache, by, norm);
      RC_ASSERT(alike(found, norms_of(other, cache, by, norm), 0));
      RC_ASSERT(alike(found, norms_of(host, cache, by, norm), 1e-4));
    });
  }
}
