// SPDX-License-Identifier: Apache-2.0
// Host implementations of the verbs that edit lists and tables of units.
#pragma once

#include <algorithm>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/host/check_list.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/kernels/slots.hpp>
#include <kvpolicy/ops/host/listed_marks.hpp>
#include <kvpolicy/ops/host/split_list.hpp>
#include <kvpolicy/ops/host/unit_marks.hpp>
#include <kvpolicy/ops/host/unit_owners.hpp>
#include <kvpolicy/ops/lists.hpp>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::rewrite_list_t, host> {
  static std::size_t scratch(cache const& in) {
    std::size_t const words = detail::unit_marks::words_for(in.where.units);
    return 2 * detail::scratch_of<std::uint64_t>(words) +
           2 * detail::scratch_of<int>(static_cast<std::size_t>(in.lanes.capacity) + 1);
  }

  template <class Shared>
  static void run(host_executor& exec, keep_set const& keep, cache const& in, list_edit<Shared> const& edit,
                  std::int64_t* freed) {
    std::atomic<std::int64_t> entries = 0;
    exec.for_each(keep.lanes.size(), [&](int i, int worker) {
      lane const this_lane = keep.lanes.at(i);
      if (!detail::leads_row(detail::rows_of(in.where, edit.list), keep.lanes, this_lane)) return;
      auto const kept = keep.listed(segment_of(keep.lanes, keep.decides, i));
      entries += rewrite(exec, exec.scratch(worker), kept, in, edit, this_lane, freed != nullptr) *
                 detail::lanes_of_row(detail::rows_of(in.where, edit.list), keep.lanes);
    });
    if (freed != nullptr) *freed += entries;
  }

 private:
  /// Dropped entries: their ordinals, which become their slots.
  struct dropped_entries {
    int* ordinal;
    int count;
  };

  /// Lists the slots of dropped entries that nobody uses any more, each once. `in_use` has the slots that are used.
  template <class Shared>
  static void release(list_edit<Shared> const& edit, int tree, detail::unit_marks& in_use, int const* position,
                      int const* slot, dropped_entries const& dropped, detail::unit_appender& freed,
                      detail::unit_appender& released) {
    for (int i = 0; i < dropped.count; ++i) {
      int const e = dropped.ordinal[i];
      int const unit = slot[e];
      dropped.ordinal[i] = unit;
      if (unit == edit.dead || in_use.has(unit)) continue;
      in_use.set(unit);
      (position[e] >= tree && !edit.shared(unit) ? freed : released).add(unit);
    }
  }

  /// Rewrites one list: kept slots at the front, drafts behind them, then the slots of dropped entries. Returns the
  /// number of freed slots.
  template <class Shared>
  static std::int64_t rewrite(host_executor const& exec, std::span<std::byte> memory, std::span<int const> kept,
                              cache const& in, list_edit<Shared> const& edit, lane this_lane, bool counts) {
    int const committed = in.lanes.committed(this_lane);
    detail::scratch_arena arena(memory);
    detail::unit_marks in_use(arena.take<std::uint64_t>(detail::unit_marks::words_for(in.where.units)));
    int* const dropped = arena.take<int>(static_cast<std::size_t>(in.lanes.capacity) + 1);
    bool const owned = std::is_same_v<Shared, nobody> && detail::number_or_zero(edit.locked_prefix, this_lane) <= 0;
    detail::edited_row const row{
        .kept = kept,
        .committed = committed,
        .drafts = *in.lanes.count.row(this_lane) - committed,
        .slot = detail::writable_list(edit.list, in.where, this_lane),
        .position = in.lanes.position.row(this_lane),
        .map = edit.map.data != nullptr ? detail::map_row(edit.map, edit.map_begin, this_lane) : nullptr,
        .gone = owned && edit.freed.unit.data != nullptr ? edit.freed.unit.row(this_lane) : dropped};
    if (owned) {
      std::size_t const bytes = detail::bytes_of_marks(in);
      detail::mark_memory const marks{{arena.take<unsigned char>(bytes), bytes}, in_use};
      int const freed =
          detail::rewrite_owned(detail::slots_of_isa[exec.simd_level()], row, marks, {in.where.units, edit.dead},
                                counts || edit.freed.unit.data != nullptr || edit.freed.count.data != nullptr);
      if (edit.freed.count.data != nullptr) *edit.freed.count.row(this_lane) = freed;
      if (edit.released.count.data != nullptr) *edit.released.count.row(this_lane) = 0;
      return freed;
    }
    detail::unit_appender freed(edit.freed, this_lane);
    detail::unit_appender released(edit.released, this_lane);
    int const gone = detail::list_dropped(exec, kept, committed, dropped);
    for (int i = 0; i < gone && row.map != nullptr; ++i) row.map[row.position[dropped[i]]] = edit.dead;
    detail::clear_marks(in_use, in.where.units, row.slot, committed + row.drafts);
    for (int const e : kept) in_use.set(row.slot[e]);
    for (int e = committed; e < committed + row.drafts; ++e) in_use.set(row.slot[e]);
    release(edit, detail::number_or_zero(edit.locked_prefix, this_lane), in_use, row.position, row.slot,
            {dropped, gone}, freed, released);
    detail::lane_moves const moves{kept, committed, row.drafts};
    for (int i = moves.first_moved(); i < moves.count(); ++i) row.slot[i] = row.slot[moves.source(i)];
    std::copy_n(dropped, gone, row.slot + row.remaining());
    return freed.count();
  }
};

template <>
struct implementation<ops::relist_t, host> {
  static void run(host_executor& exec, cache const& in, by_lane<int> const& list, by_lane<int> const& map,
                  by_lane<int const> const& map_begin, int dead, int sequence, int length) {
    by_lane<int> const rows = detail::rows_of(in.where, list);
    int const lanes = in.lanes.layers() * in.lanes.heads;
    by_lane<int> const maps = detail::rows_begun(map, map_begin);
    bool const apart = (rows.layer == 0 || maps.layer != 0) && (rows.head == 0 || maps.head != 0);
    auto const each_row = [&](auto const& visit) {
      auto const one = [&](int i, int) {
        lane const this_lane{sequence, in.lanes.layer_begin + i / in.lanes.heads, i % in.lanes.heads};
        if ((rows.layer != 0 || this_lane.layer == in.lanes.layer_begin) && (rows.head != 0 || this_lane.head == 0)) {
          visit(this_lane, *in.lanes.count.row(this_lane), in.lanes.position.row(this_lane),
                detail::map_row(map, map_begin, this_lane));
        }
      };
      if (apart) return exec.for_each(lanes, one);
      for (int i = 0; i < lanes; ++i) one(i, 0);  // lists that share a row of the map
    };
    detail::slots_kernels const& passes = detail::slots_of_isa[exec.simd_level()];
    std::atomic<bool> all_ascend = true;
    each_row([&](lane this_lane, int count, int const* position, int const* slot) {
      mapped const row{position, slot, count, passes.ascends(position, count)};
      if (!row.ascends) all_ascend.store(false, std::memory_order_relaxed);
      if (!sound(passes, in.where.units, dead, length, row)) refuse(in.where.units, dead, length, row, this_lane);
    });
    each_row([&](lane this_lane, int count, int const* position, int* slot) {
      int* const live = detail::writable_list(list, in.where, this_lane);
      if (count > length / 16 && (all_ascend.load(std::memory_order_relaxed) || passes.ascends(position, count))) {
        return take(passes, {position, slot, count, true}, dead, length, slot, live);
      }
      take_scattered(position, count, dead, length, slot, live);
    });
  }

 private:
  /// The live entries of a lane, and its row of the map.
  struct mapped {
    int const* position;
    int const* slot;
    int count;
    bool ascends;  ///< no position is below 0, and each is above the one before it
  };

  /// Edits a lane's list and its row of the map.
  static void take_scattered(int const* position, int count, int dead, int length, int* map, int* live) {
    for (int e = 0; e < count; ++e) live[e] = map[position[e]];
    std::fill_n(map, length, dead);
    for (int e = 0; e < count; ++e) map[position[e]] = live[e];
  }

  /// The same in one pass over that row, for positions that ascend.
  static void take(detail::slots_kernels const& passes, mapped const& of, int dead, int length, int* map, int* live) {
    constexpr int step = 2048;
    unsigned char marks[step];
    int taken = 0;
    for (int begin = 0; begin < length; begin += step) {
      int const some = std::min(step, length - begin);
      std::fill_n(marks, some, static_cast<unsigned char>(0));
      int const* const end = std::lower_bound(of.position + taken, of.position + of.count, begin + some);
      detail::set_marks({of.position + taken, end}, begin, 1, marks);
      for (int line = 0; line < end - of.position - taken; line += 16) __builtin_prefetch(end + line);
      taken += passes.collect_live(marks, some, dead, map + begin, of.count - taken, live + taken);
    }
  }

  /// True if every live entry is at a slot of the pool that is not the dead one. Whole rows are compared first: a map
  /// that names no dead slot needs no look at each entry's position.
  static bool sound(detail::slots_kernels const& passes, std::int64_t units, int dead, int length, mapped const& of) {
    auto const pool = static_cast<unsigned>(std::min(units, std::int64_t{1} << 31));
    bool const inside = of.ascends ? of.count == 0 || of.position[of.count - 1] < length
                                   : passes.inside(of.position, of.count, static_cast<unsigned>(length), -1);
    if (!inside) return false;
    if (of.count > length / 16 && passes.inside(of.slot, length, pool, dead)) return true;
    unsigned wrong = 0;
    for (int e = 0; e < of.count; ++e) {
      int const at = of.slot[of.position[e]];
      wrong |= static_cast<unsigned>(static_cast<unsigned>(at) >= pool) | static_cast<unsigned>(at == dead);
    }
    return wrong == 0;
  }

  static void refuse(std::int64_t units, int dead, int length, mapped const& of, lane this_lane) {
    for (int e = 0; e < of.count; ++e) {
      int const at = of.position[e] < length ? of.slot[of.position[e]] : -1;
      expects(
          at >= 0 && at < units && at != dead, "relist", "map",
          [&] {
            return std::to_string(at) + " at position " + std::to_string(of.position[e]) + " of " +
                   detail::spell_lane(this_lane);
          },
          "a live entry is at a slot of the pool that is not the dead one");
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
