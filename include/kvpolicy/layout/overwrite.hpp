// Applier: the few rows that stand behind the new end move into the holes of dropped ones.
#pragma once

#include <kvpolicy/layout/applier.hpp>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/units.hpp>

namespace KVPOLICY_NAMESPACE {

/// For decisions that drop few of many, as one a step (TRIM-KV, H2O while decoding): at most as many rows move as are
/// dropped, whatever the lane's length. The list keeps entries in the order of their positions, although their slots
/// are not. Afterwards the lane lives in its lowest slots; those that fell free stand behind the list's end, ascending,
/// so that an engine may write the next token there.
///
/// - a plan that lists the one dropped entry of each lane (`lowest_one`) moves no row: its slot is the next to write.
/// - cost: reads and writes at most one row for each dropped entry, and the list once. No allocation.
/// - refuses what list_rewrite refuses, and shared slots: rows would be overwritten for another.
struct overwrite {
  by_lane<int> list{};  ///< the table of the cache's locator, to be written

  static constexpr auto name = "overwrite";
  static constexpr applier_effects effects{.moves_rows = true, .edits_list = true, .leaves_gaps = true};
  static constexpr bool takes_dropped = true;
  using verbs = kvpolicy::verbs<ops::check_list_t, ops::fill_holes_t>;

  template <executor Executor>
  void refuse(Executor& exec, keep_set const& keep, cache const& in) const {
    if (keep.lists == side::kept) {
      detail::refuse_rows_of_both<typename Executor::backend>("apply", detail::decided_part(in, keep));
    }
    detail::refuse_list(exec, list_edit<>{.list = list, .distinct = true}, keep, in);
  }

  template <executor Executor>
  void edit(Executor& exec, keep_set const& keep, cache const& part, state<Executor>& state, apply_stats* stats) const {
    std::span<recorded_column const> const columns(state.columns());
    if (keep.lists == side::dropped) {
      ops::drop_listed(exec, keep, part, list, columns);
      if (stats != nullptr) ops::count_dropped(exec, keep, part.lanes, stats);
      return;
    }
    detail::count_tails(exec, keep, part, stats);
    ops::fill_holes(exec, keep, part, list);
    ops::permute_columns(exec, keep, part, columns);
    ops::set_counts(exec, part.lanes, keep);
    detail::count_listed(exec, keep, part.lanes, false, stats);
  }
};
static_assert(applier<overwrite>);

}  // namespace KVPOLICY_NAMESPACE
