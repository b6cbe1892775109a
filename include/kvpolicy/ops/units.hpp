// SPDX-License-Identifier: Apache-2.0
// Verbs that free units of a lane: they move rows into holes, or remove whole blocks from a table.
#pragma once

#include <kvpolicy/ops/lists.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// True if a locator has a table of units.
[[nodiscard]] constexpr bool names_units(locator const& where) {
  return where.kind == locating::slot_map || where.kind == locating::block_table || where.kind == locating::csr_pages;
}

/// The lanes and the table of every slot, or those of the call if the table has no row for the slots that the call
/// leaves out: it was made for the batch.
[[nodiscard]] inline cache of_all_slots(cache const& in) {
  cache all = in;
  bool const begins = in.where.begin.data != nullptr;
  if ((begins ? in.where.begin.slots : in.where.table.slots) != in.lanes.slots) return all;
  if ((begins ? in.where.begin.sequence : in.where.table.sequence) == 0) return all;
  all.lanes.sequence_begin = 0;
  all.lanes.sequences = in.lanes.slot_total();
  all.lanes.slots = all.lanes.count.slots = all.where.table.slots = all.where.begin.slots = nullptr;
  return all;
}

/// How many units at the front of a row its lanes go on to use, and how many behind them they give up.
struct row_units {
  int kept = 0;
  int gone = 0;
};

/// A predicate `shared` of any type.
struct any_shared {
  void const* of;
  bool (*call)(void const*, int);
  bool operator()(int unit) const { return call(of, unit); }
};
template <class Shared>
[[nodiscard]] list_edit<any_shared> with_any_shared(list_edit<Shared> const& edit) {
  auto const call = [](void const* of, int unit) { return bool{(*static_cast<Shared const*>(of))(unit)}; };
  return {.list = edit.list, .shared = {&edit.shared, call}, .freed = edit.freed, .released = edit.released};
}

}  // namespace detail

namespace ops {

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

/// `drop_units(exec, keep, cache, edit, columns, entries)`: removes whole blocks. Block i of each row of `edit.list`
/// becomes its i-th block with a kept entry or a draft. Every entry of these blocks stays, with its position and
/// columns, and is counted. The other blocks are put behind them, and are listed:
///
/// - in `edit.freed`, once, if no row of the call uses the block any more, no row of another slot, and nobody whom
///   `edit.shared` knows; in `edit.released` otherwise.
/// - out: `entries`, if not null, grows by the number of entries, summed over lanes, in the blocks of `edit.freed`.
/// - Rows of other slots are those of the cache's tables, with the counts of its lanes: see `of_all_slots`.
/// - cost: one pass over the kept entries and the blocks; where blocks leave, one over the blocks of other slots.
///   Scratch per worker on the host: two rows of ints and one of bytes, one bit per unit of the pool and per slot.
struct drop_units_t : verb<drop_units_t> {
  static constexpr auto name = "drop_units";
  static constexpr bool refuses_stale = true;
  template <class Shared>
  static constexpr void check(keep_set const&, cache const&, list_edit<Shared> const&, std::span<recorded_column const>,
                              std::int64_t*) {}
};
inline constexpr drop_units_t drop_units{};

/// `check_units(exec, keep, cache, moves)`: checks the table of a cache before a keep set is carried out, and writes
/// nothing.
///
/// - throws: `invalid_argument` if a lane's entries are in a unit that the pool does not have; or, if rows move to the
///   front of their lane (`moves`), if a unit into which they move has another entry's place in the tables of the call.
/// - cost: one pass over the units of these lanes, and one bit per unit of the pool.
/// - A device checks nothing here: its kernels trust the table.
struct check_units_t : verb<check_units_t> {
  static constexpr void check(keep_set const&, cache const&, bool) {}
};
inline constexpr check_units_t check_units{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
