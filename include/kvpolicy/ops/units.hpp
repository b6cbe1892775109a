// Verbs that free units of a lane: they move rows into holes, or remove whole blocks from a table.
#pragma once

#include <kvpolicy/ops/lists.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `fill_holes(exec, keep, cache, list, columns)`: compacts each lane into the lowest of its slots. Kept rows in other
/// slots move into the slots of dropped entries, and the list keeps the entries in order. At most as many rows move as
/// are dropped.
///
/// - Positions and columns follow their entries. Slots that became free are put after the end of the list. Counts are
///   not changed.
/// - cost: one pass over each list and each column. Scratch of a worker on the host: one bit per unit of the pool, and
///   four rows of ints.
struct fill_holes_t : verb<fill_holes_t> {
  static constexpr auto name = "fill_holes";
  static constexpr void check(keep_set const&, cache const&, by_lane<int> const&, std::span<recorded_column const>) {}
};
inline constexpr fill_holes_t fill_holes{};

/// `drop_units(exec, keep, cache, table, columns, freed, entries)`: removes whole blocks. Block i of each table row
/// becomes its i-th block with a kept entry or a draft. Every entry of these blocks stays, with its position and
/// columns, and is counted. The other blocks are put behind them and are listed in `freed`.
///
/// - out: `entries`, if not null, grows by the number of entries in the removed blocks.
/// - cost: one pass over the kept entries and the blocks. Scratch per worker on the host: two rows of ints and one of
/// bytes.
struct drop_units_t : verb<drop_units_t> {
  static constexpr auto name = "drop_units";
  static constexpr void check(keep_set const&, cache const&, by_lane<int> const&, std::span<recorded_column const>,
                              unit_list const&, std::int64_t*) {}
};
inline constexpr drop_units_t drop_units{};

}  // namespace KVPOLICY_NAMESPACE::ops
