// expect: constraint|no instance of function template .kvpolicy::v0::engines::bind
// SPDX-License-Identifier: Apache-2.0
// An engine that does not tell its facts can carry nothing.
#include <kvpolicy/engines/bind.hpp>
#include <kvpolicy/engines/llama_cpp.hpp>
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

struct nearly {
#ifndef KVPOLICY_MUST_FAIL
  static constexpr kv::engines::capabilities can = kv::engines::llama_cpp::can;
#endif
};

auto carry_once() {
  kv::eviction const policy{.score = kv::reduce_lanes<kv::knorm>{}};
  return kv::engines::bind<nearly>(policy, kv::compact{});
}
