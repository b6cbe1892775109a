// SPDX-License-Identifier: Apache-2.0
// What a policy keeps in one decision by the keys of a cache.
#pragma once

#include "support/test.hpp"

namespace kvpolicy_test {

/// The kept ordinals of each segment.
template <class Policy>
std::vector<std::vector<int>> kept_lists(kv::host_executor& exec, Policy const& policy, kv::cache const& in) {
  auto const state = kv::make_state(exec, policy, in);
  auto plan = kv::make_plan(exec, policy, in);
  kv::decide(exec, policy, kv::signals{in.lanes, kv::keys_of(in)}, state, plan);
  std::vector<std::vector<int>> lists;
  for (int s = 0; s < plan.keep().segments(); ++s) lists.push_back(listed(plan.keep(), s));
  return lists;
}

/// A cache that policies decide about.
struct decided_cache {
  explicit decided_cache(mock_options const& how) : cache(how) {}

  mock_cache cache;
  kv::host_executor exec;
  kv::cache view = cache.view();

  template <class Policy>
  std::vector<std::vector<int>> kept(Policy const& policy) {
    return kept_lists(exec, policy, view);
  }
};

/// Two layers of two lanes, with random keys of entries at these positions.
struct lanes_of_random_keys : decided_cache {
  lanes_of_random_keys(std::vector<int> const& positions, int bound, std::uint64_t seed)
      : decided_cache({.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 8}, .bound = bound}) {
    dice random(seed);
    for (int i = 0; i < cache.lane_count(); ++i) {
      cache.put(cache.lane_at(i), positions);
      for (int e = 0; e < static_cast<int>(positions.size()); ++e) {
        std::vector<double> key(8);
        for (double& each : key) each = random.below(64) / 16.0 - 2;
        cache.write(of::keys, cache.lane_at(i), e, key);
      }
    }
  }
};

}  // namespace kvpolicy_test
