// expect: this engine does not support that layout
// SPDX-License-Identifier: Apache-2.0
// TensorRT-LLM gives blocks back from the end of a sequence: nothing can be taken out of its tables, but rows can move.
#include <kvpolicy/engines/bind.hpp>
#include <kvpolicy/engines/tensorrt_llm.hpp>
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

auto carry_once() {
  kv::eviction const policy{.score = kv::snapkv{}};
#ifdef KVPOLICY_MUST_FAIL
  return kv::engines::bind<kv::engines::tensorrt_llm>(policy, kv::drop_blocks{});
#else
  return kv::engines::bind<kv::engines::tensorrt_llm>(policy, kv::compact{});
#endif
}
