// expect: this engine.s tables cannot tell these lanes apart. lower the policy with reduce_lanes, or
// SPDX-License-Identifier: Apache-2.0
// One slot list for all layers and heads cannot drop what each head drops for itself; lowered to whole tokens, it can.
#include <kvpolicy/engines/bind.hpp>
#include <kvpolicy/engines/sglang.hpp>
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

auto carry_once(kv::list_rewrite<> const& layout) {
  kv::eviction const policy{.score = kv::snapkv{}};
#ifdef KVPOLICY_MUST_FAIL
  return kv::engines::bind<kv::engines::sglang>(policy, layout);
#else
  kv::eviction const lowered{.score = kv::reduce_lanes{.score_of = policy.score}};
  return kv::engines::bind<kv::engines::sglang>(lowered, layout);
#endif
}
