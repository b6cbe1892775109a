// SPDX-License-Identifier: Apache-2.0
// Consumer 4: TRIM-KV in decode. One entry of thousands goes; the plan lists that one.
#pragma once

#include "vocabulary/engine.hpp"

namespace vocabulary {

/// A keep set that lists what goes: one ordinal a lane instead of thousands.
inline int dropped(kv::keep_set const& from, int segment) {
  return from.lists == kv::side::dropped ? static_cast<int>(from.listed(segment).size()) : -1;
}

}  // namespace vocabulary
