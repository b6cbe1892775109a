// expect: an erased policy takes at most 16 signals
// SPDX-License-Identifier: Apache-2.0
// A policy by name is shown signals through a table of fixed size.
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

template <int>
struct tag {
  static constexpr auto name = "tag";
};

template <int... Number>
void observe_once(kv::host_executor& exec, kv::any_policy const& policy, kv::cache& cache,
                  kv::state<kv::host_executor>& state, std::integer_sequence<int, Number...>) {
  kv::observe(exec, policy, kv::signals{cache.lanes, tag<Number>{}...}, state);
}

#ifdef KVPOLICY_MUST_FAIL
constexpr int signals_given = 17;
#else
constexpr int signals_given = 16;
#endif

void observe_many(kv::host_executor& exec, kv::any_policy const& policy, kv::cache& cache,
                  kv::state<kv::host_executor>& state) {
  observe_once(exec, policy, cache, state, std::make_integer_sequence<int, signals_given>{});
}
