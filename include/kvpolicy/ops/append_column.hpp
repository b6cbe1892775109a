// SPDX-License-Identifier: Apache-2.0
// Verb: appends one number for each new entry to a recorded column.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Converts a number to the form in which a column stores it: 0 becomes -0, which compares equal to 0. A column is
/// zeroed with +0, so an entry whose number is 0 can be distinguished from an entry that never got a number.
struct told_number {
  [[nodiscard]] KVPOLICY_HD float operator()(float number) const { return number == 0.0f ? -0.0f : number; }
};

/// How many of a lane's first numbers may count. Where positions are not given and drafts are in flight, they are those
/// of the newest committed entries that have no number yet, and the others are those of the drafts.
[[nodiscard]] KVPOLICY_HD inline int numbers_of_committed(lanes const& batch, entry_numbers const& from,
                                                          by_lane<float> const& column, lane one) {
  int const all = from.count(one);
  if (from.position.data != nullptr || batch.in_flight == nullptr || *batch.drafts(one.sequence) <= 0) return all;
  float const* const row = column.row(one);
  int const committed = batch.committed(one);
  int untold = 0;
  while (untold < all && untold < committed && same_bits<std::uint32_t>(row[committed - 1 - untold]) == 0) ++untold;
  return all < 0 ? all : untold;
}

/// How many of a lane's numbers count.
[[nodiscard]] KVPOLICY_HD inline int counted_numbers(lanes const& batch, entry_numbers const& from,
                                                     by_lane<float> const& column, lane one) {
  int const many = numbers_of_committed(batch, from, column, one);
  if (from.position.data == nullptr) return many;
  int const newest = batch.newest(one);
  int counted = 0;
  for (int i = 0; i < many; ++i) counted += from.counts_at(one, i, newest) ? 1 : 0;
  return counted;
}

}  // namespace detail

namespace ops {

/// `append_column(exec, lanes, new_tokens, column)`: the newest committed entries of each lane get the numbers that
/// count, in order. Those of drafts in flight do not count (`entry_numbers::position`).
///
/// - in: `new_tokens`, one number per new entry, in any readable element type.
/// - out: `column`, float32, one number per entry of a lane. A number of 0 is stored as -0; an entry that has no number
///   has +0.
/// - throws: `invalid_argument` if a lane has fewer entries than there are numbers. Then nothing was changed.
struct append_column_t : verb<append_column_t> {
  static constexpr auto name = "append_column";
  static void check(lanes const&, entry_numbers const& new_numbers, by_lane<float> const&) {
    expects(new_numbers.entries >= 0, "observe", "entries", new_numbers.entries, "a count cannot be negative");
  }
};
inline constexpr append_column_t append_column{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
