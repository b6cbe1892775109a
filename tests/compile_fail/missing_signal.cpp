// expect: this scorer or recorder needs a signal that the given kvpolicy::signals do not provide
// SPDX-License-Identifier: Apache-2.0
// A scorer whose signal nobody gives or records: one readable line, which also names the scorer, the signal and the
// signals that are there.
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

struct gate {
  static constexpr auto name = "gate";
};

struct by_gate {
#ifdef KVPOLICY_MUST_FAIL
  using needs = kv::needs<kv::keys, gate>;
#else
  using needs = kv::needs<kv::keys>;
#endif
  static constexpr kv::granularity decides = kv::granularity::lane;
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    kv::ops::row_norm(exec, in.template get<kv::keys>(), kv::negated{}, out);
  }
  friend bool operator==(by_gate const&, by_gate const&) = default;
};

void decide_once(kv::host_executor& exec, kv::cache& cache, kv::state<kv::host_executor>& state,
                 kv::plan<kv::host_executor>& plan) {
  kv::decide(exec, kv::eviction{.score = by_gate{}}, kv::signals{cache.lanes, kv::keys_of(cache)}, state, plan);
}
