// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

namespace kvpolicy_test {

/// Whether tests take their time: tools/nightly.sh sets KVPOLICY_TEST_NIGHT, and has all cases.
inline bool at_night() { return std::getenv("KVPOLICY_TEST_NIGHT") != nullptr; }

/// How often a long test repeats itself: `all` times in the night, a third of that for every change.
inline int rounds(int all) { return at_night() ? all : (all + 2) / 3; }

}  // namespace kvpolicy_test
