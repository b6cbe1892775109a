// SPDX-License-Identifier: Apache-2.0
// Applier: moves the few kept rows in the highest slots into the slots of dropped entries.
#pragma once

#include <kvpolicy/layout/applier.hpp>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/units.hpp>

namespace KVPOLICY_NAMESPACE {

/// For decisions that drop few of many entries, such as one in each decoding step (TRIM-KV, H2O). At most as many rows
/// move as entries are dropped, whatever the lane's length. The list stays in the order of positions, although the
/// slots in it do not ascend. Afterwards the lane's entries are in the lowest of its slots. The free slots stand after
/// the list's end, ascending, so that an engine can write the next token there.
///
/// - with a plan that lists the one dropped entry of each lane (`lowest_one`) no row moves: the dropped entry's slot is
///   the next one to write.
/// - with such a plan and `lanes.order`, the newest entry takes the place of the dropped one in the list, so that a
/// step
///   costs the same whatever the budget. The list is trusted then, as `compact` trusts its tables: only the slot of the
///   dropped entry is compared with the pool. Without a list (`overwrite{}`) the newest entry's row is copied to the
///   place of the dropped one: contiguous caches and paged ones decode so.
/// - cost: reads and writes at most one row for each dropped entry, and the list once; with `lanes.order` O(1) of the
///   list. No allocation.
/// - refuses everything that `list_rewrite` refuses, and slots that two entries or two sequences share, because moving
///   a row would overwrite the other one. If rows move, it also refuses rows that are both keys and values.
struct overwrite {
  by_lane<int> list{};  ///< the table that the cache's locator reads, as writable memory

  static constexpr auto name = "overwrite";
  static constexpr applier_effects effects{.moves_rows = true, .edits_list = true, .leaves_gaps = true};
  static constexpr bool takes_dropped = true;
  using verbs = kvpolicy::verbs<ops::check_list_t, ops::fill_holes_t, ops::free_tails_t>;

  template <executor Executor>
  void refuse(Executor& exec, keep_set const& keep, cache const& in) const {
    if (replaces(keep, in)) return refuse_replacement(exec, keep, in);
    if (keep.lists == side::kept) {
      detail::refuse_unmovable_rows<typename Executor::backend>("apply", detail::decided_part(in, keep));
    }
    detail::refuse_list(exec, list_edit<>{.list = list, .distinct = true}, keep, in);
  }

  template <executor Executor>
  void edit(Executor& exec, keep_set const& keep, cache const& part, state<Executor>& state, apply_stats* stats) const {
    std::span<recorded_column const> const columns(state.columns(part.lanes));
    if (keep.lists == side::dropped) {
      if (replaces(keep, part)) {
        ops::replace_listed(exec, keep, part, list, columns);
      } else {
        ops::drop_listed(exec, keep, part, list, columns);
      }
      if (stats != nullptr) ops::count_dropped(exec, keep, part.lanes, stats);
      return;
    }
    detail::count_freed_tails(exec, keep, part, stats);
    ops::fill_holes(exec, keep, part, list, columns);
    ops::set_counts(exec, part.lanes, keep);
    detail::count_what_stays(exec, keep, part.lanes, false, stats);
  }

 private:
  /// True if the newest entry takes the place of the dropped one.
  static bool replaces(keep_set const& keep, cache const& in) {
    return keep.lists == side::dropped && in.lanes.order.data != nullptr;
  }

  template <executor Executor>
  void refuse_replacement(Executor&, keep_set const& keep, cache const& in) const {
    detail::refuse_shared("lanes.order", in.lanes.order, keep, in.shape);
    cache const part = detail::decided_part(in, keep);
    if (list.data == nullptr) return detail::refuse_unmovable_rows<typename Executor::backend>("apply", part);
    detail::check_slots("list", list, in, keep);
    if constexpr (detail::reads_on_host<typename Executor::backend>) check_dropped_slots(keep, part);
  }
  /// Refuses a dropped entry whose slot is not one of the pool. On a device, kernels check it before anything moves.
  static void check_dropped_slots(keep_set const& keep, cache const& part) {
    if (dropped_slots_fit(keep, part)) return;
    detail::for_each_lane(keep.lanes, [&](int i, lane one) {
      for (int const ordinal : keep.listed(segment_of(keep.lanes, keep.decides, i))) {
        int const slot = part.where.list(one)[ordinal];
        expects(
            slot >= 0 && slot < part.where.units, "apply", "list",
            [&] {
              return std::to_string(slot) + " at entry " + std::to_string(ordinal) + " of " +
                     detail::spell_lane_of(part.lanes, one);
            },
            [&] { return "the pool has slots 0 to " + std::to_string(part.where.units - 1); });
      }
    });
  }
  /// True if they all are. The slots are all over memory: the loop is so short that a processor reads many at a time.
  static bool dropped_slots_fit(keep_set const& keep, cache const& part) {
    bool fit = true;
    std::int64_t const units = part.where.units;
    detail::for_each_heads(keep.lanes, 0, keep.lanes.size(), keep.lanes.heads, [&](int i, lane first, int heads) {
      detail::head_rows<int const> const lists(part.where.table, first);
      detail::head_rows<int const> const begins(part.where.begin, first);
      for (int h = 0; h < heads; ++h) {
        int const* const list = lists[h] + (part.where.begin.data != nullptr ? *begins[h] : 0);
        for (int const ordinal : keep.listed(segment_of(keep.lanes, keep.decides, i + h))) {
          fit = fit & (list[ordinal] >= 0) & (list[ordinal] < units);
        }
      }
    });
    return fit;
  }
};

}  // namespace KVPOLICY_NAMESPACE
