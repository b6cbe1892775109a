// What a policy keeps in one decision by the keys of a cache.
#pragma once

#include <kvpolicy/kvpolicy.hpp>
#include <vector>

#include "support/scores.hpp"

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

}  // namespace kvpolicy_test
