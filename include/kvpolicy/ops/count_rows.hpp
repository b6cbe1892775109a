// SPDX-License-Identifier: Apache-2.0
// Verb: finds the rows of a forward that count.
#pragma once

#include <kvpolicy/core/lanes.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// The positions of a forward's rows. All layers and heads of a sequence have the same rows.
struct row_positions {
  int rows = 0;                     ///< maximum number of rows of a sequence
  by_lane<int const> position{};    ///< the position of each row; negative: the row does not count
  by_lane<int const> valid_rows{};  ///< the number of valid rows of each sequence; null: `rows`
  bool before_drafts = false;       ///< rows from the first draft in flight on do not count either

  [[nodiscard]] KVPOLICY_HD int valid(lane this_lane) const {
    int const all = valid_rows.data != nullptr ? *valid_rows.row(this_lane) : rows;
    return all < 0 ? 0 : all > rows ? rows : all;
  }
  /// The position from which on rows do not count.
  [[nodiscard]] KVPOLICY_HD int end(lanes const& batch, lane this_lane) const {
    constexpr int none = 0x7FFFFFFF;
    if (!before_drafts || batch.in_flight == nullptr || *batch.drafts(this_lane.sequence) <= 0) return none;
    int const committed = batch.committed(this_lane);
    return committed < batch.capacity ? batch.position.row(this_lane)[committed] : none;
  }
};

/// The rows of each sequence that count: their indices, ascending, and their number.
struct counted_rows {
  by_lane<int> index{};
  by_lane<int> number{};
};

namespace ops {

/// `count_rows(exec, lanes, from, to)`: writes the rows of each sequence whose position is not negative and below
/// `from.end`.
///
/// - out: `to`, for each sequence of the lanes the indices of its rows that count, and how many there are. `to.index`
///   has room for `from.rows` indices of each sequence.
/// - cost: reads each row's position once. No allocation.
struct count_rows_t : verb<count_rows_t> {
  static constexpr void check(lanes const&, row_positions const&, counted_rows const&) {}
};
inline constexpr count_rows_t count_rows{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
