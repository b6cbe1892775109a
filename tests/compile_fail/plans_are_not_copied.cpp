// expect: deleted|cannot be referenced -- it is a deleted function
// SPDX-License-Identifier: Apache-2.0
// A plan's keep set points into its own memory: it moves, and is not copied.
#include <kvpolicy/kvpolicy.hpp>
#include <utility>

namespace kv = kvpolicy;

kv::plan<kv::host_executor> hand_over(kv::plan<kv::host_executor>& made) {
#ifdef KVPOLICY_MUST_FAIL
  return made;
#else
  return std::move(made);
#endif
}
