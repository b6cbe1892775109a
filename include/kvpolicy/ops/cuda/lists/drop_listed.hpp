// SPDX-License-Identifier: Apache-2.0
// Device implementation of drop_listed, which drops at most one entry of each lane and closes the gap.
#pragma once

#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/cuda/moves/move_rows.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Moves the entries behind the dropped one up by one place.
struct gap_moves {
  int ordinal = -1;  ///< the dropped entry; below 0: none
  int last = 0;      ///< entries of the lane afterwards

  [[nodiscard]] KVPOLICY_HD bool none() const { return ordinal < 0; }
  [[nodiscard]] KVPOLICY_HD int count() const { return last; }
  [[nodiscard]] KVPOLICY_HD int source(int i) const { return i < ordinal ? i : i + 1; }
};

/// Moves the ints behind `first` up by one place, as tile_mover moves rows: int i becomes int i + 1, for i < last.
template <class Block>
KVPOLICY_HD void shift_down(Block& block, int* of, int first, int last) {
  for (int i = first; i < last; i += block.threads()) {
    int const e = i + block.thread();
    int const next = e < last ? of[e + 1] : 0;
    block.sync();
    if (e < last) of[e] = next;
  }
}

/// Closes the gap in a list of slots, and puts the dropped slot `gone`, which every thread has read, behind the list.
template <class Block>
KVPOLICY_HD void close_list(Block& block, gap_moves const& now, int* slot, int gone) {
  shift_down(block, slot, now.ordinal, now.last);
  block.sync();
  if (block.thread() == 0) slot[now.last] = gone;
}

/// What each lane drops, and how its entries move.
struct gap_lanes {
  keep_set keep{};
  kvpolicy::lanes lanes{};

  /// The ordinal of the entry that the i-th lane drops; -1 if it drops none.
  [[nodiscard]] KVPOLICY_HD int dropped(int i) const {
    listed_row const gone = listed_for(keep, lanes, i);
    return gone.count > 0 ? gone.ordinal[0] : -1;
  }
  [[nodiscard]] KVPOLICY_HD gap_moves of(int i) const {
    int const ordinal = dropped(i);
    return ordinal < 0 ? gap_moves{} : gap_moves{ordinal, *lanes.count.row(lanes.at(i)) - 1};
  }
};

/// The first block of a lane closes the gap in its list of slots and puts the dropped slot behind the list. Other
/// blocks move positions and columns.
struct close_gap_kernel {
  permute_kernel<gap_lanes> permute;
  unit_table list;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const of_a_lane = permute.slices + 1;
    int const i = block.index() / of_a_lane;
    int const slice = block.index() % of_a_lane - 1;
    always_permitted permission;
    if (slice >= 0) return permute.run(block, i, slice, permission);
    gap_moves const now = permute.moves.of(i);
    lane const one = permute.lanes.at(i);
    if (now.none() || list.units.data == nullptr || !leads_row(list.shares, permute.lanes, one)) return;
    int* const slot = list.row(one);
    close_list(block, now, slot, slot[now.ordinal]);
  }
};

struct decrease_counts {
  gap_lanes moves;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    lane const one = moves.lanes.at(static_cast<int>(i));
    if (!leads_row(moves.lanes.count, moves.lanes, one)) return;
    *moves.lanes.count.row(one) -= listed_for(moves.keep, moves.lanes, static_cast<int>(i)).count;
  }
};

}  // namespace detail

/// Takes two launches: one for lists, positions and columns, one for counts. Counts come last because lanes may share
/// them and all blocks of the first launch read them. More than eight columns and positions take further launches.
template <kernel_backend Backend>
struct implementation<ops::drop_listed_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, cache const& in, by_lane<int> const& list,
                  std::span<recorded_column const> columns) {
    detail::gap_lanes const moves{keep, in.lanes};
    detail::unit_table slots = detail::table_of(in.where, list);
    detail::for_each_permute(exec, moves, in, columns, false, [&](auto const& permute) {
      detail::launch_unless_fault(exec, launch_shape{in.lanes.size() * (permute.slices + 1), exec.threads().row, 0},
                                  detail::close_gap_kernel{permute, slots});
      slots = {};  // lists change once
    });
    detail::launch_each_unless_fault(exec, in.lanes.size(), detail::decrease_counts{moves});
  }
};

}  // namespace KVPOLICY_NAMESPACE
