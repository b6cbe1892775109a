// expect: constraint|no instance of function template .kvpolicy::v0::engines::carry
// An engine that does not tell its facts can carry nothing.
#include <kvpolicy/engines/carry.hpp>
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
  return kv::engines::carry<nearly>(policy, kv::compact{});
}
