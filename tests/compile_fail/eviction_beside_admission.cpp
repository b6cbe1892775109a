// expect: this eviction records what forwards show, in the window and in the pages
// SPDX-License-Identifier: Apache-2.0
// H2O's mass is made of attention over window and pages, and both have recorders.
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

#ifdef KVPOLICY_MUST_FAIL
using evict_type = kv::h2o;
#else
using evict_type = kv::trim_kv;
#endif

void observe(kv::host_executor& exec, kv::dual_cache const& both, kv::gate const& gates, kv::log_beta const& betas) {
  auto const policy = kv::cache_policy{.admit = kv::policies::wg_kv(),
                                       .select = kv::omitted{},
                                       .evict = kv::eviction{.score = evict_type{}, .budget = kv::per_lane{64}}};
  auto state = kv::make_state(exec, policy, both);
  kv::observe(exec, policy, kv::signals{both.window.lanes, gates, betas}, state);
}
