// expect: signal_needed_by<.*record_attention_mass.*queries|Reader=kvpolicy::v0::record_attention_mass.*queries
// SPDX-License-Identifier: Apache-2.0
// H2O observes queries; a forward that shows keys alone is refused, and the error names the recorder and the signal.
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

void observe_once(kv::host_executor& exec, kv::cache& cache, kv::state<kv::host_executor>& state,
                  [[maybe_unused]] kv::queries const& rows) {
  auto const policy = kv::policies::h2o({.budget = 64});
#ifdef KVPOLICY_MUST_FAIL
  kv::observe(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache)}, state);
#else
  kv::observe(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache), rows}, state);
#endif
}
