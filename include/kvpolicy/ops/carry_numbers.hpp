// Verb: numbers that entries are born with enter a column that moves with them.
#pragma once

#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `carry_numbers(exec, who, fresh, column)`: the newest committed entries of each lane get their numbers, in order.
///
/// - in: `fresh`, a number an entry, in any element type. out: `column`, float32, one an entry of a lane.
/// - throws: `invalid_argument` if a lane holds fewer entries than there are numbers. Then nothing was changed.
struct carry_numbers_t : verb<carry_numbers_t> {
  static constexpr auto name = "carry_numbers";
  static void check(lanes const&, entry_numbers const& fresh, by_lane<float> const&) {
    expects(fresh.entries >= 0, "observe", "entries", fresh.entries, "a count cannot be negative");
  }
};
inline constexpr carry_numbers_t carry_numbers{};

}  // namespace KVPOLICY_NAMESPACE::ops
