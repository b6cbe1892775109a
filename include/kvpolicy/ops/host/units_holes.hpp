// SPDX-License-Identifier: Apache-2.0
// Host implementation of fill_holes.
#pragma once

#include <algorithm>
#include <bit>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/listed_marks.hpp>
#include <kvpolicy/ops/host/select.hpp>
#include <kvpolicy/ops/host/unit_owners.hpp>
#include <kvpolicy/ops/lists.hpp>
#include <kvpolicy/ops/units.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::fill_holes_t, host> {
  static std::size_t scratch(cache const& in) {
    auto const bound = static_cast<std::size_t>(in.lanes.capacity);
    return detail::scratch_of<std::uint64_t>(detail::unit_marks::words_for(in.where.units)) +
           4 * detail::scratch_of<int>(bound + 1);
  }

  static void run(host_executor& exec, keep_set const& keep, cache const& in, by_lane<int> const& list,
                  std::span<recorded_column const> columns) {
    by_lane<int> const rows = detail::rows_of(in.where, list);
    exec.for_each(keep.lanes.size(), [&](int i, int worker) {
      lane const this_lane = keep.lanes.at(i);
      detail::lane_moves moves = detail::moves_of(keep, in, i);
      if (moves.gone() > 0 && detail::leads_row(rows, keep.lanes, this_lane)) {
        detail::scratch_arena arena(exec.scratch(worker));
        auto const bound = static_cast<std::size_t>(in.lanes.capacity);
        int* const dropped = arena.take<int>(bound + 1);
        std::span<int const> const gone(dropped, static_cast<std::size_t>(moves.gone()));
        detail::list_dropped(exec, moves.kept, moves.committed, dropped);
        if (detail::drops_few(moves.kept.size(), moves.committed)) moves.gaps = gone;
        work_space const space{arena.take<int>(bound + 1), arena.take<int>(bound + 1), arena.take<int>(bound + 1),
                               arena.take<std::uint64_t>(detail::unit_marks::words_for(in.where.units))};
        fill(exec, space, keep.lanes, in, list, this_lane, moves, gone);
      }
      detail::permute_lane(in, this_lane, moves, columns);
    });
  }

 private:
  /// Rows of ints, one element longer than a lane, and a bit for every unit.
  struct work_space {
    int* high;     ///< entries in the highest slots, of which there are as many as are dropped
    int* vacated;  ///< these slots
    int* holes;    ///< slots of dropped entries below those, and behind them the slots from which rows move there
    std::uint64_t* marks;
  };
  /// Moves of rows of a lane between slots.
  struct slot_moves {
    int* from;
    int* to;
    int count;
  };

  /// Compacts one list, and the rows of all lanes that share it.
  static void fill(host_executor const& exec, work_space const& space, lanes const& all, cache const& in,
                   by_lane<int> const& list, lane this_lane, detail::lane_moves const& moves,
                   std::span<int const> gone) {
    int* const slot = detail::writable_list(list, in.where, this_lane);
    int const count = moves.committed + moves.drafts, many = moves.gone();
    int const lowest = list_highest(exec, {slot, static_cast<std::size_t>(count)}, many, in.where.units, space);
    for (int i = 0; i < many; ++i) space.vacated[i] = slot[space.high[i]];
    ascend(space.marks, space.vacated, many);
    int const holes = list_holes(slot, gone, lowest, space.holes);
    // The number of rows that move equals the number of holes, which is at most half of the lane's rows.
    slot_moves const rows{space.holes + holes, space.holes, holes};
    take_holes(slot, {space.high, static_cast<std::size_t>(many)}, gone, rows);
    detail::move_numbers<int>(reinterpret_cast<std::byte*>(slot), moves);
    std::copy_n(space.vacated, many, slot + moves.count());
    detail::unit_pools(in, list, all).for_each_sharing(all, this_lane, [&](lane one) { move(exec, in, one, rows); });
  }

  /// Lists the places of the `many` highest of distinct slots, ascending, and returns a number that exactly these are
  /// not below. In a pool without gaps the first guess is right, because no more than `many` slots fit there.
  static int list_highest(host_executor const& exec, std::span<int const> slots, int many, std::int64_t units,
                          work_space const& space) {
    auto const list_from = [&, count = static_cast<int>(slots.size())](int least) {
      return detail::listing_of_isa[exec.simd_level()].rows(slots.data(), count, least, space.high);
    };
    int const guess = static_cast<int>(std::max(std::int64_t{1}, units - many));
    if (list_from(guess) == many) return guess;
    auto* const keys = reinterpret_cast<std::uint32_t*>(space.vacated);
    std::copy(slots.begin(), slots.end(), keys);
    auto const last = static_cast<std::uint32_t>(units - 1);
    auto const lowest = static_cast<int>(detail::narrow(keys, static_cast<int>(slots.size()), many, 0, last).lowest);
    list_from(lowest);
    return lowest;
  }

  /// Sorts distinct slots by a mark for each unit between the lowest and the highest of them.
  static void ascend(std::uint64_t* words, int* slots, int count) {
    auto const [lowest, highest] = std::minmax_element(slots, slots + count);
    int const begin = *lowest / 64, end = *highest / 64 + 1;
    std::fill(words + begin, words + end, 0);
    detail::unit_marks marks(words);
    for (int i = 0; i < count; ++i) marks.set(slots[i]);
    for (int w = begin; w < end; ++w) {
      for (std::uint64_t word = words[w]; word != 0; word &= word - 1) *slots++ = w * 64 + std::countr_zero(word);
    }
  }

  /// Lists the slots of dropped entries that the lane continues to use, and returns their number.
  static int list_holes(int const* slot, std::span<int const> gone, int lowest, int* holes) {
    int to = 0;
    for (int const entry : gone) {
      holes[to] = slot[entry];
      to += slot[entry] < lowest ? 1 : 0;
    }
    return to;
  }

  /// Gives the kept ones of some entries the slots to which rows move, and lists the slots that they had. Both lists of
  /// entries ascend.
  static void take_holes(int* slot, std::span<int const> high, std::span<int const> gone, slot_moves const& rows) {
    auto next = gone.begin();
    int taken = 0;
    for (int const entry : high) {
      while (next != gone.end() && *next < entry) ++next;
      if (next != gone.end() && *next == entry) continue;
      rows.from[taken] = slot[entry];
      slot[entry] = rows.to[taken++];
    }
  }

  static void move(host_executor const& exec, cache const& in, lane this_lane, slot_moves const& moves) {
    detail::for_each_moved_plane(in, [&](plane const& rows) {
      int const bytes = moves.count <= 256 && rows.contiguous() ? rows.channels * bytes_of(rows.element) : 0;
      for (int i = 0; i < moves.count; ++i) {  // holes are scattered, so nothing else fetches them
        for (int at = 0; at < bytes; at += 64) __builtin_prefetch(row(rows, this_lane, moves.to[i]) + at, 1, 2);
      }
      detail::copy_rows_one_by_one(
          exec, rows, {0, moves.count}, [&](int i) { return row(rows, this_lane, moves.from[i]); },
          [&](int i) { return row(rows, this_lane, moves.to[i]); });
    });
  }

  static std::byte* row(plane const& rows, lane this_lane, int slot) {
    return rows.row(this_lane.layer, {slot, 0}, this_lane.head);
  }
};

}  // namespace KVPOLICY_NAMESPACE
