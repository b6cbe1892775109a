// What appliers do to memory, as facts that an engine is asked about.
#pragma once

#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE {

/// What an applier does to an engine's memory. Engines are asked whether they can bear it (engines/capabilities.hpp).
struct applier_effects {
  bool moves_rows = false;      ///< rows of K and V are written
  bool edits_list = false;      ///< a list with one token a unit is shortened
  bool drops_blocks = false;    ///< whole blocks leave a block table
  bool masks = false;           ///< a mask over the pool is written
  bool redirects = false;       ///< positions are redirected to a reserved slot
  bool rotates_keys = false;    ///< keys turn to new positions, so that no position is missing
  bool leaves_gaps = false;     ///< attention meets a sequence in which positions are missing
  friend bool operator==(applier_effects const&, applier_effects const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
