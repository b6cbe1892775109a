// SPDX-License-Identifier: Apache-2.0
// The effects of appliers on an engine's memory, which are compared with the capabilities of the engine.
#pragma once

#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE {

/// The effects of an applier on an engine's memory. engines/capabilities.hpp says which of them an engine supports.
struct applier_effects {
  bool moves_rows = false;    ///< it writes rows of K and V
  bool edits_list = false;    ///< it shortens a list of slots with one token each
  bool drops_blocks = false;  ///< it removes whole blocks from a block table
  bool masks = false;         ///< it writes a mask over the pool
  bool redirects = false;     ///< it redirects positions to a reserved slot
  bool rotates_keys = false;  ///< it rotates keys to new positions, so that no position is missing
  bool leaves_gaps = false;   ///< positions are missing in the sequence that attention reads afterwards
  friend bool operator==(applier_effects const&, applier_effects const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
