// SPDX-License-Identifier: Apache-2.0
// The C interface: the calls of a type-erased policy, whose exceptions become codes and texts.
#include <kvpolicy/c/kvpolicy.h>

#include <cstring>
#include <string>

#include "c/state.hpp"

using namespace kvpolicy_c;

extern "C" {

char const* kvpolicy_version() { return kv::version; }

char const* kvpolicy_last_error() { return last_error.c_str(); }

kvpolicy_status kvpolicy_parse(char const* text, kvpolicy_policy** policy) {
  return guarded("kvpolicy_parse", [&] {
    given(policy, "kvpolicy_parse", "policy");
    *policy = nullptr;
    given(text, "kvpolicy_parse", "text");
    *policy = new kvpolicy_policy{kv::parse(text)};
  });
}

kvpolicy_status kvpolicy_print(kvpolicy_policy const* policy, char* text, size_t size, size_t* length) {
  return guarded("kvpolicy_print", [&] {
    given(policy, "kvpolicy_print", "policy");
    if (size > 0) given(text, "kvpolicy_print", "text");
    std::string const whole = kv::to_string(policy->value);
    if (size > 0) {
      std::size_t const some = whole.size() < size ? whole.size() : size - 1;
      std::memcpy(text, whole.data(), some);
      text[some] = '\0';
    }
    if (length != nullptr) *length = whole.size();
  });
}

void kvpolicy_policy_destroy(kvpolicy_policy* policy) { delete policy; }

kvpolicy_status kvpolicy_make(kvpolicy_policy const* policy, kvpolicy_cache const* cache, int threads,
                              kvpolicy_state** state) {
  return make_state<kv::host_executor>("kvpolicy_make", policy, cache, state, threads);
}

void kvpolicy_state_destroy(kvpolicy_state* state) { delete state; }

kvpolicy_status kvpolicy_append(kvpolicy_state* state, int sequence, int tokens, int position) {
  return guarded("kvpolicy_append", [&] {
    given(state, "kvpolicy_append", "state");
    state->append(sequence, tokens, position);
  });
}

kvpolicy_status kvpolicy_truncate(kvpolicy_state* state, int sequence, int position) {
  return guarded("kvpolicy_truncate", [&] {
    given(state, "kvpolicy_truncate", "state");
    state->truncate(sequence, position);
  });
}

kvpolicy_status kvpolicy_reset(kvpolicy_state* state, int sequence) {
  return guarded("kvpolicy_reset", [&] {
    given(state, "kvpolicy_reset", "state");
    state->reset(sequence);
  });
}

kvpolicy_status kvpolicy_observe(kvpolicy_state* state, kvpolicy_signals const* signals) {
  return guarded("kvpolicy_observe", [&] {
    given(state, "kvpolicy_observe", "state");
    state->observe(signals);
  });
}

kvpolicy_status kvpolicy_decide(kvpolicy_state* state, kvpolicy_signals const* signals) {
  std::string unobserved;
  kvpolicy_status const done = guarded("kvpolicy_decide", [&] {
    given(state, "kvpolicy_decide", "state");
    unobserved = state->decide(signals);
  });
  return unobserved.empty() ? done : fails(KVPOLICY_UNOBSERVED, "kvpolicy_decide", unobserved.c_str());
}

kvpolicy_status kvpolicy_reported(kvpolicy_state const* state, kvpolicy_report* report) {
  return guarded("kvpolicy_reported", [&] {
    given(state, "kvpolicy_reported", "state");
    given(report, "kvpolicy_reported", "report");
    *report = state->reported();
  });
}

kvpolicy_status kvpolicy_kept(kvpolicy_state const* state, int sequence, int layer, int kv_head, int const** ordinals,
                              int* count) {
  return guarded("kvpolicy_kept", [&] {
    given(state, "kvpolicy_kept", "state");
    given(ordinals, "kvpolicy_kept", "ordinals");
    given(count, "kvpolicy_kept", "count");
    std::span<int const> const kept = state->kept(sequence, layer, kv_head);
    *ordinals = kept.data();
    *count = static_cast<int>(kept.size());
  });
}

kvpolicy_status kvpolicy_apply(kvpolicy_state* state, kvpolicy_stats* stats) {
  return guarded("kvpolicy_apply", [&] {
    given(state, "kvpolicy_apply", "state");
    state->apply(stats);
  });
}

kvpolicy_status kvpolicy_synchronize(kvpolicy_state* state) {
  return guarded("kvpolicy_synchronize", [&] {
    given(state, "kvpolicy_synchronize", "state");
    state->synchronize();
  });
}

}  // extern "C"
