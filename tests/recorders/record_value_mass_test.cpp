// SPDX-License-Identifier: Apache-2.0
// Attention weighted by the norms of values, in every layout: where all are as long, it is the attention itself.
#include "support/device.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// The sums that a scorer reads, of all lanes, after a forward with drafts.
template <class Score, class Executor>
std::vector<float> sums_of(Executor& exec, mock_cache& cache, mock_queries const& rows) {
  kv::eviction const policy{.score = Score{}, .budget = kv::per_lane{0}};
  kv::cache const view = cache.view();
  auto [state, plan] = state_and_plan(exec, policy, view);
  kv::signals const in{view.lanes, kv::keys_of(view), kv::values_of(view), kv::queries{rows.view()}};
  observe_and_decide(exec, policy, in, state, plan);
  if constexpr (requires { exec.check(); }) exec.check();
  std::vector<float> made;
  for (int i = 0; i < cache.lane_count(); ++i) {
    for (int e = 0; e < cache.committed(cache.lane_at(i)); ++e) made.push_back(plan.score(i, e));
  }
  return made;
}

TEST_SUITE("recorders/record_value_mass") {
  TEST_CASE("values of one length change nothing, whatever the layout, drafts and rows that do not count") {
    holds("equal values", 60, [] {
      mock_options shape = any_mock(6);
      shape.skew = 0;
      RC_LOG() << shape << '\n';
      mock_cache cache(shape);
      if (cache.latent() || kv::is_fp8(shape.element)) return;  // values are keys, or are rounded each in its own way
      fill(cache, true);
      int const width = shape.model.value_dim > 0 ? shape.model.value_dim : shape.model.head_dim;
      reference::row value(as_size(width), 0.0);
      value[0] = 2;
      for (int i = 0; i < cache.lane_count(); ++i) {
        for (int e = 0; e < cache.count(cache.lane_at(i)); ++e) cache.write(of::values, cache.lane_at(i), e, value);
      }
      current_queries rows(cache, kv::codec::f32, *rc::gen::inRange(1, 6), 5);
      kv::host_executor host(*rc::gen::element(1, 3));
      device_executor device(launch_numbers{}, shape.seed);
      auto const expected = sums_of<kv::received_attention>(host, cache, rows);
      for (auto const& found :
           {sums_of<kv::received_by_value>(host, cache, rows), sums_of<kv::received_by_value>(device, cache, rows)}) {
        RC_ASSERT(found.size() == expected.size());
        for (std::size_t e = 0; e < found.size(); ++e) RC_ASSERT(std::fabs(found[e] - expected[e]) <= 2e-5f);
      }
    });
  }
}

}  // namespace
