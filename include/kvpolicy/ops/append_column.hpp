// Verb: numbers that entries are born with enter a column that moves with them.
#pragma once

#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// A number as it is kept: 0 becomes -0, which compares as equal, so that an entry that was told 0 can be told from one
/// that was told nothing, wherever it moves.
struct told_number {
  [[nodiscard]] KVPOLICY_HD float operator()(float number) const { return number == 0.0f ? -0.0f : number; }
};

}  // namespace detail

namespace ops {

/// `append_column(exec, lanes, new_tokens, column)`: the newest committed entries of each lane get their numbers, in
/// order.
///
/// - in: `new_tokens`, a number an entry, in any element type. out: `column`, float32, one an entry of a lane; a number
/// of 0
///   is kept as -0, an entry without one has +0.
/// - throws: `invalid_argument` if a lane holds fewer entries than there are numbers. Then nothing was changed.
struct append_column_t : verb<append_column_t> {
  static constexpr auto name = "append_column";
  static void check(lanes const&, entry_numbers const& new_numbers, by_lane<float> const&) {
    expects(new_numbers.entries >= 0, "observe", "entries", new_numbers.entries, "a count cannot be negative");
  }
};
inline constexpr append_column_t append_column{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
