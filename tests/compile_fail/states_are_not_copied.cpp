// expect: deleted|cannot be referenced -- it is a deleted function
// SPDX-License-Identifier: Apache-2.0
// A state's memory is made once; a fork is copied into memory that is there.
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

void fork(kv::state<kv::host_executor> const& from, kv::state<kv::host_executor>& to) {
#ifdef KVPOLICY_MUST_FAIL
  to = from;
#else
  to.copy_from(from);
#endif
}
