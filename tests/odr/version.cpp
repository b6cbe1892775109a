// SPDX-License-Identifier: Apache-2.0
// Nothing but the version, and a second look at the umbrella: an inline variable is one object.
#include <kvpolicy/kvpolicy.hpp>

int run_version() { return kvpolicy::version[0] != '\0' ? 0 : 1; }
