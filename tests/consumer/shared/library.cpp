// SPDX-License-Identifier: Apache-2.0
// Compiled twice: LIBRARY is library_a in one shared library and library_b in the other.
#include "library.hpp"

namespace kv = kvpolicy;

namespace {

tiny::policy make_policy(int budget) { return {.score = {}, .protect = {1}, .budget = {budget}}; }

tiny::state make_state(kv::host_executor& exec, tiny::policy const& policy, kv::cache const& cache) {
  return kv::make_state(exec, policy, cache);
}

tiny::plan make_plan(kv::host_executor& exec, tiny::policy const& policy, kv::cache const& cache) {
  return kv::make_plan(exec, policy, cache);
}

void decide(kv::host_executor& exec, tiny::policy const& policy, kv::cache const& cache, tiny::state const& state,
            tiny::plan& plan) {
  kv::decide(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache)}, state, plan);
}

void apply(kv::host_executor& exec, tiny::plan const& plan, kv::cache& cache, tiny::state& state) {
  kv::apply(exec, kv::compact{}, plan, cache, state);
}

void refuse() {
  tiny::memory memory;
  kv::host_executor exec;
  (void)kv::make_plan(exec, make_policy(-1), memory.view());
}

bool catches(void (*refuse)()) {
  try {
    refuse();
  } catch (kv::invalid_argument const&) {
    return true;
  } catch (...) {
  }
  return false;
}

char const* version() { return kv::version; }

}  // namespace

extern "C" [[gnu::visibility("default")]] library const* LIBRARY() {
  static constexpr library all{make_policy, make_state, make_plan, decide, apply, refuse, catches, version};
  return &all;
}
