// expect: this executor's backend has no implementation of this verb
// SPDX-License-Identifier: Apache-2.0
// A verb on a backend that does not have it says which header is missing.
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

struct elsewhere {};

struct other_executor : kv::host_executor {
#ifdef KVPOLICY_MUST_FAIL
  using backend = elsewhere;
#endif
};

void pool_once(other_executor& exec, kv::score_view const& scores) { kv::ops::pool(exec, kv::max_pool{7}, scores, 0); }
