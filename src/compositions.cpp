// SPDX-License-Identifier: Apache-2.0
// The parser, the policies that it makes, and the ready compositions, for programs that define KVPOLICY_COMPILED.
#define KVPOLICY_INSTANCE template
#include <kvpolicy/compiled.hpp>
