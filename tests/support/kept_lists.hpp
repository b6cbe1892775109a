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

}  // namespace kvpolicy_test
