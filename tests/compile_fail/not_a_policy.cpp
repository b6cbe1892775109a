// expect: this policy has no member `trigger`, but a policy has a data member `trigger`, a trigger
// SPDX-License-Identifier: Apache-2.0
// A policy of one's own has a scorer, a protection, a budget and a trigger.
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

struct nearly {
  kv::knorm score{};
  kv::nothing protect{};
  kv::per_lane budget{};
#ifndef KVPOLICY_MUST_FAIL
  kv::over_budget trigger{};
#endif
};

void make(kv::host_executor& exec, kv::cache& cache) {
  [[maybe_unused]] auto plan = kv::make_plan(exec, nearly{}, cache);
}
