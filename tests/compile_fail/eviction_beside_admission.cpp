// expect: a policy used beside an admission may only record values that are known when a token is appended
// H2O's mass is made of attention over a whole lane, of which pages are a part.
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

#ifdef KVPOLICY_MUST_FAIL
using evict_type = kv::h2o;
#else
using evict_type = kv::trim_kv;
#endif

void compose(kv::host_executor& exec, kv::dual_cache const& both) {
  auto const policy = kv::cache_policy{.admit = kv::policies::wg_kv(),
                                       .select = kv::omitted{},
                                       .evict = kv::eviction{.score = evict_type{}, .budget = kv::per_lane{64}}};
  static_cast<void>(kv::make_state(exec, policy, both));
}
