// Verbs that give back units of a lane: rows into holes, whole blocks out of a table.
#pragma once

#include <kvpolicy/ops/lists.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `fill_holes(exec, keep, cache, list)`: the lane goes on in its lowest slots: kept rows that stand in others move
/// into the places of dropped ones, and the list keeps the entries in order. At most as many rows move as are dropped.
/// Positions and columns are not touched; slots that fell free stand behind the list's end.
struct fill_holes_t : verb<fill_holes_t> {
  static constexpr auto name = "fill_holes";
  static constexpr void check(keep_set const&, cache const&, by_lane<int> const&) {}
};
inline constexpr fill_holes_t fill_holes{};

/// `drop_units(exec, keep, cache, table, columns, freed, entries)`: block i of each table row becomes its i-th block
/// that holds a kept entry or a draft; every entry of those stays, with its position, columns and count. The other
/// blocks stand behind and are listed in `freed`; `entries`, where not null, grows by what they held.
/// - cost: one pass over the entries. A row of ints a worker as scratch.
struct drop_units_t : verb<drop_units_t> {
  static constexpr auto name = "drop_units";
  static constexpr void check(keep_set const&, cache const&, by_lane<int> const&, std::span<recorded_column const>,
                              unit_list const&, std::int64_t*) {}
};
inline constexpr drop_units_t drop_units{};

}  // namespace KVPOLICY_NAMESPACE::ops
