// SPDX-License-Identifier: Apache-2.0
// Consumer 5: Quest. Pages are chosen by bounds of their keys; nothing is dropped.
#pragma once

#include "vocabulary/engine.hpp"

namespace vocabulary {

using kv::page_bounds;
using kv::quest;

/// A read set is a keep set of pages.
inline bool is_read_set(kv::keep_set const& chosen) { return chosen.items == kv::item::page; }

}  // namespace vocabulary
