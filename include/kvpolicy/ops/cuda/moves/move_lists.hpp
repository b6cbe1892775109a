// SPDX-License-Identifier: Apache-2.0
// Which entries a lane keeps, and which lane writes a row that several lanes share.
#pragma once

#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/cuda/lists/rows.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/lists.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// A table of units that may be written, and where each lane's part of a row begins.
struct unit_table {
  by_lane<int> units{};
  by_lane<int const> begin{};
  by_lane<int> shares{};  ///< strides of `units` and of `begin`; 0 where lanes share a row

  [[nodiscard]] KVPOLICY_HD int* row(lane this_lane) const {
    return units.row(this_lane) + (begin.data != nullptr ? *begin.row(this_lane) : 0);
  }
};

[[nodiscard]] inline unit_table table_of(locator const& where, by_lane<int> const& units) {
  return {units, where.begin, rows_of(where, units)};
}

/// How the kept entries of a lane, and the drafts behind them, move: new entry i is old entry `source(i)`, and source
/// ascends. Therefore source(i) - i never falls, and once an entry moves, all behind it move.
struct kept_moves {
  int const* kept = nullptr;
  int entries = 0;  ///< kept entries
  int committed = 0;
  int drafts = 0;

  [[nodiscard]] KVPOLICY_HD bool none() const { return false; }
  [[nodiscard]] KVPOLICY_HD int count() const { return entries + drafts; }
  [[nodiscard]] KVPOLICY_HD int source(int i) const { return i < entries ? kept[i] : committed + i - entries; }
  /// How many kept entries come before ordinal e.
  [[nodiscard]] KVPOLICY_HD int before(int e) const { return listed_row{kept, entries}.before(e); }
};

/// The moves of every lane of a keep set.
struct kept_lanes {
  keep_set keep{};
  kvpolicy::lanes lanes{};

  [[nodiscard]] KVPOLICY_HD kept_moves of(int i) const {
    lane const one = lanes.at(i);
    listed_row const kept = listed_for(keep, lanes, i);
    int const committed = lanes.committed(one);
    return {kept.ordinal, kept.count, committed, *lanes.count.row(one) - committed};
  }
};

/// The first new entry that differs from the old one in its place, or the number of entries if none does. Every warp
/// searches by itself, 32 places at a time.
template <class Block, class Moves>
[[nodiscard]] KVPOLICY_HD int first_moved(Block& block, Moves const& moves) {
  int low = 0;
  int high = moves.count();
  while (low < high) {
    int const at = low + static_cast<int>(std::int64_t{high - low} * lane_id(block) / warp_size);
    unsigned const moved = block.ballot(moves.source(at) != at);
    int const first = popcount(~moved & (moved - 1));  // the index of the lowest set bit, or warp_size
    int const stays = low + static_cast<int>(std::int64_t{high - low} * (first - 1) / warp_size);
    if (first < warp_size) high = low + static_cast<int>(std::int64_t{high - low} * first / warp_size);
    if (first > 0) low = stays + 1;
  }
  return high;
}

}  // namespace KVPOLICY_NAMESPACE::detail
