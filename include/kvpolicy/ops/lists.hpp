// SPDX-License-Identifier: Apache-2.0
// Verbs that edit the units of entries: lists of slots, block tables, and maps from positions to slots.
#pragma once

#include <algorithm>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

/// The predicate `shared` of caches whose slots have one owner: no slot is shared.
struct nobody {
  KVPOLICY_HD constexpr bool operator()(int) const { return false; }
  friend bool operator==(nobody const&, nobody const&) = default;
};

/// Units that an applier returns to the engine, for every row of the edited table. A row of `unit` has as many elements
/// as a row of the table; what stands behind the first `count` of them is unspecified. A null member is not written.
struct unit_list {
  by_lane<int> unit{};
  by_lane<int> count{};
};

/// How a list of slots is edited when entries are dropped.
///
/// `list` is the table of the cache's locator, as writable memory. The rest is optional: `map` is the engine's own
/// table from positions to slots, in which dropped positions are redirected to the slot `dead`.
template <class Shared = nobody>
struct list_edit {
  by_lane<int> list{};
  by_lane<int> map{};
  by_lane<int const> map_begin{};  ///< where the positions of a lane begin in its row of `map`; null: at 0
  int dead = -1;                   ///< the dead slot, which no live entry uses; it is never freed
  by_lane<int const>
      protected_prefix{};  ///< per lane: positions before it are protected, and never redirected; null: none
  by_lane<int const> locked_prefix{};  ///< per lane: a prefix tree owns the slots of positions before it, so they are
                                       ///< never freed; null: none
  bool distinct = false;               ///< no two entries of one list may have the same slot
  Shared shared{};                     ///< KVPOLICY_HD bool(int slot): true if another owner refers to the slot
  unit_list freed{};                   ///< slots without any remaining owner, each once
  unit_list released{};                ///< shared or locked slots that this sequence stopped using, each once
};

namespace detail {

/// The slots of a lane, indexed by position.
[[nodiscard]] KVPOLICY_HD inline int* map_row(by_lane<int> const& map, by_lane<int const> const& begin,
                                              lane this_lane) {
  return map.row(this_lane) + (begin.data != nullptr ? *begin.row(this_lane) : 0);
}

}  // namespace detail

namespace ops {

/// `check_list(exec, keep, cache, edit)`: checks that the list, the map and the keep set agree. It covers what only the
/// contents of memory show, and writes nothing.
///
/// - throws: `invalid_argument` if a slot is not in the pool; if a live entry uses the dead slot; if the map names the
///   dead slot inside the protected prefix; if list and map differ at a live entry; if two lists of one pool, or with
///   `distinct` two entries of one list, name a slot that is not shared; or if the keep set drops a position of the
///   protected prefix.
/// - cost: one pass over the lists. Scratch of a worker on the host: two bits per unit of the pool, and a row of ints.
struct check_list_t : verb<check_list_t> {
  static constexpr auto name = "check_list";
  template <class Shared>
  static constexpr void check(keep_set const&, cache const&, list_edit<Shared> const&) {}
};
inline constexpr check_list_t check_list{};

/// `rewrite_list(exec, keep, cache, edit, freed)`: moves the slot of the i-th kept entry to place i of its list. Drafts
/// follow, and then the slots of dropped entries. Dropped positions of the map are redirected to the dead slot, and the
/// slots that may be freed are listed in `edit.freed`.
///
/// - A slot is freed at most once, and never if it is the dead slot, locked, shared, or still used by a kept entry.
/// - out: `freed`, if not null, grows by the number of entries, summed over lanes, whose slot was freed.
/// - cost: one pass over each list. Scratch of a worker on the host: two bits per unit of the pool, and two rows of
///   ints.
struct rewrite_list_t : verb<rewrite_list_t> {
  static constexpr auto name = "rewrite_list";
  template <class Shared>
  static constexpr void check(keep_set const&, cache const&, list_edit<Shared> const&, std::int64_t*) {}
};
inline constexpr rewrite_list_t rewrite_list{};

/// `relist(exec, cache, list, map, map_begin, dead, sequence, length)`: copies the slots of one sequence's live entries
/// from the map into the list, and redirects all other positions of the map below `length` to the dead slot.
///
/// - throws: `invalid_argument` if the map has the dead slot, or a slot that is not in the pool, at a live entry's
///   position. Then nothing was changed.
struct relist_t : verb<relist_t> {
  static constexpr auto name = "relist";
  static constexpr void check(cache const&, by_lane<int> const&, by_lane<int> const&, by_lane<int const> const&, int,
                              int, int) {}
};
inline constexpr relist_t relist{};

}  // namespace ops

namespace detail {

/// The table with strides that show which lanes share a row. In one list for a whole batch, rows differ by where they
/// begin, so a nonzero stride of `begin` counts as a nonzero stride of the table.
template <class T>
by_lane<T> rows_begun(by_lane<T> table, by_lane<int const> const& begin) {
  if (begin.data != nullptr && begin.sequence != 0) table.sequence = 1;
  if (begin.data != nullptr && begin.layer != 0) table.layer = 1;
  if (begin.data != nullptr && begin.head != 0) table.head = 1;
  return table;
}
template <class T>
by_lane<T> rows_of(locator const& where, by_lane<T> const& table) {
  return rows_begun(table, where.begin);
}

/// True for the first of the lanes that share a row of this table. That lane writes the row.
template <class T>
[[nodiscard]] KVPOLICY_HD bool leads_row(by_lane<T> const& table, lanes const& batch, lane one) {
  return (table.sequence != 0 || one.sequence == batch.sequence_begin) &&
         (table.layer != 0 || one.layer == batch.layer_begin) && (table.head != 0 || one.head == 0);
}

/// A lane's row of a list that may be written.
[[nodiscard]] KVPOLICY_HD inline int* writable_list(by_lane<int> const& list, locator const& where, lane this_lane) {
  return list.row(this_lane) + (where.begin.data != nullptr ? *where.begin.row(this_lane) : 0);
}

/// The lane's number in a table, or 0 if the table has no memory.
[[nodiscard]] KVPOLICY_HD inline int number_or_zero(by_lane<int const> const& table, lane this_lane) {
  return table.data != nullptr ? *table.row(this_lane) : 0;
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
