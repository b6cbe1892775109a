// Applier: the few rows that stand behind the new end move into the holes of dropped ones.
#pragma once

#include <kvpolicy/layout/edit.hpp>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/units.hpp>

namespace KVPOLICY_NAMESPACE {

/// For decisions that drop few of many, as one a step (TRIM-KV, H2O while decoding): at most as many rows move as are
/// dropped, whatever the lane's length. The list keeps entries in the order of their positions, although their slots
/// are not. Afterwards the lane lives in its lowest slots; those that fell free stand behind the list's end, ascending,
/// so that an engine may write the next token there.
struct overwrite {
  by_lane<int> list{};  ///< the table of the cache's locator, to be written

  static constexpr auto name = "overwrite";
};

namespace detail {

/// One entry a lane goes: its slot stands behind the list's end, and the engine writes the next token there.
template <executor Executor>
void apply_dropped(Executor& exec, overwrite const& how, plan<Executor> const& decided, cache const& in,
                   state<Executor>& held, tally* told) {
  keep_set const& keep = decided.keep();
  cache const part = decided_part(exec, decided, in, held, side::dropped);
  check_slots("list", how.list, in, keep);
  check_list_scratch(exec, in);
  ops::check_list(exec, keep, part, list_edit<>{.list = how.list, .distinct = true});
  ops::drop_listed(exec, keep, part, how.list, std::span<held_column const>(held.columns()));
  if (told != nullptr) ops::tell_dropped(exec, keep, part.who, told);
}

}  // namespace detail

/// Carries a keep set out by filling holes: rows of K and V, the list, positions and recorded columns.
///
/// - a plan that lists the one dropped entry of each lane (`lowest_one`) moves no row: its slot is the next to write.
/// - cost: reads and writes at most one row for each dropped entry, and the list once. No allocation.
/// - throws: `invalid_argument` as apply of list_rewrite, and if slots are shared: rows would be overwritten for
///   another. Then nothing was changed.
template <executor Executor>
void apply(Executor& exec, overwrite const& how, plan<Executor> const& decided, cache& in, state<Executor>& held,
           tally* told = nullptr) {
  keep_set const& keep = decided.keep();
  if (keep.lists == side::dropped) return detail::apply_dropped(exec, how, decided, in, held, told);
  cache const part = detail::decided_part(exec, decided, in, held);
  detail::refuse_rows_of_both<typename Executor::backend>("apply", part);
  detail::check_slots("list", how.list, in, keep);
  detail::check_list_scratch(exec, in);
  ops::check_list(exec, keep, part, list_edit<>{.list = how.list, .distinct = true});
  detail::tell_tails(exec, keep, part, told);
  ops::fill_holes(exec, keep, part, how.list);
  ops::carry_entries(exec, keep, part, std::span<held_column const>(held.columns()));
  ops::set_counts(exec, part.who, keep);
  detail::tell_kept(exec, keep, part.who, false, told);
}

}  // namespace KVPOLICY_NAMESPACE
