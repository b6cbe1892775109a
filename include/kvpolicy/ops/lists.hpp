// Verbs that edit which unit an entry lives in: lists of slots, block tables, maps by position.
#pragma once

#include <algorithm>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

/// A slot that nobody else refers to: every one, where slots have one owner.
struct nobody {
  KVPOLICY_HD constexpr bool operator()(int) const { return false; }
  friend bool operator==(nobody const&, nobody const&) = default;
};

/// Units that an applier hands back, for every row of the edited table: `unit` has room for a whole row. Null: not
/// told.
struct unit_list {
  by_lane<int> unit{};
  by_lane<int> count{};
};

/// How a list of slots is edited when entries go.
///
/// `list` is the table of the cache's locator, to be written. The rest is optional: `map` is the engine's own slot of
/// every position, where dropped positions are redirected to the slot `dead`.
template <class Shared = nobody>
struct list_edit {
  by_lane<int> list{};
  by_lane<int> map{};
  by_lane<int const> map_begin{};  ///< where a lane's positions begin in its row of the map; null: at 0
  int dead = -1;                   ///< the slot that is nobody's; never freed
  by_lane<int const> prefix{};     ///< positions before it are never redirected; null: none
  by_lane<int const> locked{};     ///< slots of positions before it belong to a prefix tree: never freed; null: none
  bool distinct = false;           ///< two entries of one list may not have one slot
  Shared shared{};                 ///< KVPOLICY_HD bool(int slot): another owner refers to it
  unit_list freed{};               ///< slots that nobody refers to any more, each once
  unit_list released{};            ///< shared or locked slots that this sequence does not refer to any more, each once
};

namespace detail {

/// A lane's slots by position.
[[nodiscard]] KVPOLICY_HD inline int* map_row(by_lane<int> const& map, by_lane<int const> const& begin,
                                              lane this_lane) {
  return map.row(this_lane) + (begin.data != nullptr ? *begin.row(this_lane) : 0);
}

}  // namespace detail

namespace ops {

/// `check_list(exec, keep, cache, edit)`: the list, the map and the keep set agree, as far as only their contents tell.
///
/// - throws: `invalid_argument` if a slot is out of the pool; a live entry is at the dead slot; the map names the dead
///   slot inside the protected prefix; list and map differ at a live entry; two lists of one pool, or with `distinct`
///   two entries of one list, name a slot that is not shared; or the keep set drops a position of the protected prefix.
/// - cost: one pass over the lists. A bit a unit of the pool as scratch.
struct check_list_t : verb<check_list_t> {
  static constexpr auto name = "check_list";
  template <class Shared>
  static constexpr void check(keep_set const&, cache const&, list_edit<Shared> const&) {}
};
inline constexpr check_list_t check_list{};

/// `rewrite_list(exec, keep, cache, edit, freed)`: entry i of each list becomes what its i-th kept entry was; the slots
/// that fell out stand behind. Dropped positions of the map are redirected, and the slots that may be freed are listed.
///
/// - a slot is freed at most once, and never if it is the dead slot, locked, shared, or still that of a kept entry.
/// - out: `freed`, where not null, grows by the number of entries, over all lanes, whose slot was freed.
/// - cost: one pass over each list. A bit a unit and a row of ints a worker as scratch.
struct rewrite_list_t : verb<rewrite_list_t> {
  static constexpr auto name = "rewrite_list";
  template <class Shared>
  static constexpr void check(keep_set const&, cache const&, list_edit<Shared> const&, std::int64_t*) {}
};
inline constexpr rewrite_list_t rewrite_list{};

/// `relist(exec, cache, list, map, map_begin, dead, sequence, length)`: live entries of one sequence take their slots
/// from the map, and the map's other positions below `length` take the dead slot.
/// - throws: `invalid_argument` if a live entry's position is at the dead slot or out of the pool. Then nothing was
///   changed.
struct relist_t : verb<relist_t> {
  static constexpr auto name = "relist";
  static constexpr void check(cache const&, by_lane<int> const&, by_lane<int> const&, by_lane<int const> const&, int,
                              int, int) {}
};
inline constexpr relist_t relist{};

}  // namespace ops

namespace detail {

/// A table as far as sharing goes: rows of one list for a whole batch are told apart by where they begin.
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

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
