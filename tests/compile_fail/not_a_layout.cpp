// expect: constraint|no instance of function template .kvpolicy::v0::engines::bind
// A layout that is none of the appliers, by its name, is carried out by no engine.
#include <kvpolicy/engines/bind.hpp>
#include <kvpolicy/engines/llama_cpp.hpp>
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

struct nearly {
#ifdef KVPOLICY_MUST_FAIL
  static constexpr auto name = "squash";
#else
  static constexpr auto name = "compact";
#endif
};

auto carry_once() {
  kv::eviction const policy{.score = kv::reduce_lanes<kv::knorm>{}};
  return kv::engines::bind<kv::engines::llama_cpp>(policy, nearly{});
}
