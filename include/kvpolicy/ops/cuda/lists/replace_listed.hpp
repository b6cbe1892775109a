// SPDX-License-Identifier: Apache-2.0
// Device implementation of replace_listed, which moves the newest entry of a lane to the place of the dropped one.
#pragma once

#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/cuda/lists/drop_listed.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Moves one entry to an earlier place.
struct one_move {
  int from = 0;
  int to = 0;
  [[nodiscard]] KVPOLICY_HD int count() const { return to + 1; }
  [[nodiscard]] KVPOLICY_HD int source(int) const { return from; }
};

/// How the entries of a lane move that drops this one.
[[nodiscard]] KVPOLICY_HD inline lane_replacement replacement_in(lanes const& batch, lane one, int ordinal) {
  return replacement_of(batch.order_of(one), batch.position.row(one), batch.committed(one), ordinal);
}

/// Checks that the dropped entry's slot is one of the pool.
struct dropped_slot_check {
  gap_lanes moves;
  unit_table list;
  std::int64_t units;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, device_error faults, std::int64_t i) const {
    int const ordinal = moves.dropped(static_cast<int>(i));
    if (ordinal < 0) return;
    int const slot = list.row(moves.lanes.at(static_cast<int>(i)))[ordinal];
    if (slot < 0 || slot >= units) report_fault(block, faults, fault::list_slot, i, slot);
  }
};

/// The first block of a lane changes its list of slots. Each other block moves a slice of rows or of a column: first
/// the newest entry, then the few entries behind its old place.
struct replace_kernel {
  gap_lanes moves;
  locator where;
  unit_table list;
  few_moved what;
  few_columns known;
  int slices;  ///< slices of a lane, over all planes and columns

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const i = block.index() / (slices + 1);
    int const ordinal = moves.dropped(i);
    if (ordinal < 0) return;
    lane const one = moves.lanes.at(i);
    int const source = replacement_in(moves.lanes, one, ordinal).source;
    gap_moves const behind{source, *moves.lanes.count.row(one) - 1};
    int slice = block.index() % (slices + 1) - 1;
    if (slice < 0) return change_list(block, one, ordinal, behind);
    int item = 0;
    while (slice >= what.of[item].slices) slice -= what.of[item++].slices;
    moved_rows const& mine = what.of[item];
    if (mine.led_by(moves.lanes, one)) move_entries(block, mine, one, slice, ordinal, behind);
  }

 private:
  template <class Block>
  KVPOLICY_HD void move_entries(Block& block, moved_rows const& rows, lane one, int slice, int ordinal,
                                gap_moves const& behind) const {
    one_move const newest{behind.ordinal, ordinal};
    if (behind.ordinal != ordinal) {
      run_by_width(block, rows.width, tile_mover<one_move>{rows, where, one, newest, ordinal, slice});
    }
    run_by_width(block, rows.width, tile_mover<gap_moves>{rows, where, one, behind, behind.ordinal, slice});
  }

  /// The dropped entry's slot is read before any other is written, and is then put behind the lane's last entry.
  template <class Block>
  KVPOLICY_HD void change_list(Block& block, lane one, int ordinal, gap_moves const& behind) const {
    if (block.thread() == 0) lower_known(block, known, one, ordinal);
    if (list.units.data == nullptr || !leads_row(list.shares, moves.lanes, one)) return;
    int* const slot = list.row(one);
    int const gone = slot[ordinal];
    block.sync();
    if (block.thread() == 0 && behind.ordinal != ordinal) slot[ordinal] = slot[behind.ordinal];
    close_list(block, behind, slot, gone);
  }
};

/// Moves positions, and writes the order and the count of each lane, one block for each. Lanes that share a row of
/// counts share positions too, so that the block which writes a count is the only one that reads it.
struct replace_positions_kernel {
  gap_lanes moves;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const ordinal = moves.dropped(block.index());
    lane const one = moves.lanes.at(block.index());
    if (ordinal < 0) return;
    lanes const& batch = moves.lanes;
    if (leads_row(batch.position, batch, one)) {
      int* const position = batch.position.row(one);
      lane_replacement const how = replacement_in(batch, one, ordinal);
      int const last = *batch.count.row(one) - 1;
      block.sync();
      if (block.thread() == 0) {
        if (how.source != ordinal) position[ordinal] = position[how.source];
        *batch.order.row(one) = how.after;
      }
      shift_down(block, position, how.source, last);
    }
    block.sync();
    if (block.thread() == 0 && leads_row(batch.count, batch, one)) --*batch.count.row(one);
  }
};

}  // namespace detail

/// Takes three launches, or two without a list. One checks the dropped slots, one moves lists or rows and columns, and
/// one writes positions, orders and counts, which all blocks before it read. More than eight planes and columns take
/// further launches. A fault is recorded for a slot that is not in the pool; then nothing moves.
template <kernel_backend Backend>
struct implementation<ops::replace_listed_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, keep_set const& keep, cache const& in, by_lane<int> const& list,
                  std::span<recorded_column const> columns) {
    detail::gap_lanes const moves{keep, in.lanes};
    detail::unit_table slots = detail::table_of(in.where, list);
    if (list.data != nullptr) {
      detail::launch_check(exec, in.lanes.size(), detail::dropped_slot_check{moves, slots, in.where.units});
    }
    detail::few_columns const known = detail::known_columns(columns);
    bool launched = false;
    auto const launch = [&](detail::few_moved some) {
      int const slices = detail::split_columns(some, in.lanes.size(), exec.config());
      detail::launch_unless_fault(exec, launch_shape{in.lanes.size() * (slices + 1), exec.threads().row, 0},
                                  detail::replace_kernel{moves, in.where, slots, some, known, slices});
      slots = {};  // lists change once
      launched = true;
    };
    detail::moved_list rest(launch);
    if (list.data == nullptr) rest.add_planes(in);
    rest.add_columns(columns);
    rest.flush();
    if (!launched) launch(detail::few_moved{});
    detail::launch_unless_fault(exec, launch_shape{in.lanes.size(), exec.threads().row, 0},
                                detail::replace_positions_kernel{moves});
  }
};

}  // namespace KVPOLICY_NAMESPACE
