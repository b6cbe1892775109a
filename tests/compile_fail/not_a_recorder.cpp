// expect: constraint|no instance of function template .kvpolicy::v0::state
// SPDX-License-Identifier: Apache-2.0
// A struct that does not say which signal it provides is no recorder: a state takes no columns of it.
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

struct nearly {
  using needs = kv::needs<kv::queries>;
#ifndef KVPOLICY_MUST_FAIL
  using provides = kv::attention_mass;
#endif
  [[nodiscard]] static std::array<kv::column, 1> columns(kv::shape const&, int) { return {}; }
  [[nodiscard]] static kv::attention_mass view(kv::recorded_columns const&) { return {}; }
  friend bool operator==(nearly const&, nearly const&) = default;
};

void keep(kv::state<kv::host_executor>& state) { state.add(nearly{}); }
