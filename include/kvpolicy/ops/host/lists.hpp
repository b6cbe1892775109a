// Host implementations of the verbs that edit lists and tables of units.
#pragma once

#include <algorithm>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/ops/host/check_list.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/listed_marks.hpp>
#include <kvpolicy/ops/host/slot_kernels.hpp>
#include <kvpolicy/ops/host/unit_marks.hpp>
#include <kvpolicy/ops/lists.hpp>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::rewrite_list_t, host> {
  static constexpr bool provided = true;

  static std::size_t scratch(cache const& in) {
    std::size_t const words = detail::unit_marks::words_for(in.where.units);
    return 2 * detail::scratch_of<std::uint64_t>(words) +
           2 * detail::scratch_of<int>(static_cast<std::size_t>(in.lanes.bound) + 1);
  }

  template <class Shared>
  static void run(host_executor& exec, keep_set const& keep, cache const& in, list_edit<Shared> const& edit,
                  std::int64_t* freed) {
    std::atomic<std::int64_t> entries = 0;
    exec.for_each(keep.lanes.size(), [&](int i, int worker) {
      lane const this_lane = keep.lanes.at(i);
      if (!detail::owns_row(detail::rows_of(in.where, edit.list), keep.lanes, this_lane)) return;
      auto const kept = keep.listed(segment_of(keep.lanes, keep.decides, i));
      entries += rewrite(exec.simd_level(), exec.scratch(worker), kept, in, edit, this_lane) *
                 detail::lanes_of_row(detail::rows_of(in.where, edit.list), keep.lanes);
    });
    if (freed != nullptr) *freed += entries;
  }

 private:
  /// Writes a row of a unit_list. Without memory it only counts.
  class appender {
   public:
    appender(unit_list const& to, lane this_lane)
        : to_(to.unit.data != nullptr ? to.unit.row(this_lane) : nullptr),
          num_listed_(to.count.data != nullptr ? to.count.row(this_lane) : nullptr) {}
    appender(appender const&) = delete;
    appender& operator=(appender const&) = delete;
    ~appender() {
      if (num_listed_ != nullptr) *num_listed_ = count_;
    }
    void add(int unit) {
      if (to_ != nullptr) to_[count_] = unit;
      ++count_;
    }
    [[nodiscard]] std::int64_t count() const { return count_; }

   private:
    int* to_;
    int* num_listed_;
    int count_ = 0;
  };

  /// Clears the marks that will be read, in the faster of two ways.
  static void clear_marks(detail::unit_marks& seen, std::int64_t units, int const* slot, int count) {
    if (units / 16 <= count) return seen.clear_all(units);
    for (int e = 0; e < count; ++e) seen.clear(slot[e]);
  }

  /// Dropped entries: their ordinals, which become their slots.
  struct dropped_entries {
    int* ordinal;
    int count;
  };

  /// Lists the slots of dropped entries that nobody uses any more, each once. `seen` has the slots that are used.
  template <class Shared>
  static void release(list_edit<Shared> const& edit, int tree, detail::unit_marks& seen, int const* position,
                      int const* slot, dropped_entries const& dropped, appender& freed, appender& released) {
    for (int i = 0; i < dropped.count; ++i) {
      int const e = dropped.ordinal[i];
      int const unit = slot[e];
      dropped.ordinal[i] = unit;
      if (unit == edit.dead || seen.has(unit)) continue;
      seen.set(unit);
      (position[e] >= tree && !edit.shared(unit) ? freed : released).add(unit);
    }
  }

  /// One list, and its rows of the tables.
  struct edited_row {
    std::span<int const> kept;
    int committed;
    int drafts;
    int* slot;
    int const* position;
    int* map;  ///< null: there is none
    [[nodiscard]] int gone() const { return committed - static_cast<int>(kept.size()); }
    /// The entries that remain, which are at the front after an edit.
    [[nodiscard]] int remaining() const { return static_cast<int>(kept.size()) + drafts; }
  };

  /// Rewrites one list: kept slots at the front, drafts behind them, then the slots of dropped entries. Returns the
  /// number of freed slots.
  template <class Shared>
  static std::int64_t rewrite(isa simd_level, std::span<std::byte> memory, std::span<int const> kept, cache const& in,
                              list_edit<Shared> const& edit, lane this_lane) {
    int const committed = in.lanes.committed(this_lane);
    edited_row const row{
        .kept = kept,
        .committed = committed,
        .drafts = *in.lanes.count.row(this_lane) - committed,
        .slot = detail::list_row(edit.list, in.where, this_lane),
        .position = in.lanes.position.row(this_lane),
        .map = edit.map.data != nullptr ? detail::map_row(edit.map, edit.map_begin, this_lane) : nullptr};
    detail::scratch_arena arena(memory);
    detail::unit_marks seen(arena.take<std::uint64_t>(detail::unit_marks::words_for(in.where.units)));
    int* const dropped = arena.take<int>(static_cast<std::size_t>(in.lanes.bound) + 1);
    if (std::is_same_v<Shared, nobody> && detail::number_of(edit.locked, this_lane) <= 0) {
      std::span<unsigned char> const marks(arena.take<unsigned char>(detail::bytes_of_marks(in)),
                                           detail::bytes_of_marks(in));
      int const freed = split(simd_level, row, marks, seen, {in.where.units, edit.dead}, dropped);
      if (edit.freed.unit.data != nullptr) std::copy_n(dropped, freed, edit.freed.unit.row(this_lane));
      if (edit.freed.count.data != nullptr) *edit.freed.count.row(this_lane) = freed;
      if (edit.released.count.data != nullptr) *edit.released.count.row(this_lane) = 0;
      return freed;
    }
    appender freed(edit.freed, this_lane);
    appender released(edit.released, this_lane);
    int const gone = detail::list_dropped(simd_level, kept, committed, dropped);
    for (int i = 0; i < gone && row.map != nullptr; ++i) row.map[row.position[dropped[i]]] = edit.dead;
    clear_marks(seen, in.where.units, row.slot, committed + row.drafts);
    for (int const e : kept) seen.set(row.slot[e]);
    for (int e = committed; e < committed + row.drafts; ++e) seen.set(row.slot[e]);
    release(edit, detail::number_of(edit.locked, this_lane), seen, row.position, row.slot, {dropped, gone}, freed,
            released);
    detail::lane_moves const moves{kept, committed, row.drafts};
    for (int i = moves.first(); i < moves.count(); ++i) row.slot[i] = row.slot[moves.source(i)];
    std::copy_n(dropped, gone, row.slot + row.remaining());
    return freed.count();
  }

  /// The pool of a list.
  struct pool {
    std::int64_t units;
    int dead;
  };

  /// Rewrites a list whose slots have one owner. Writes the slots to free to `freed`, and returns their number.
  static int split(isa simd_level, edited_row const& row, std::span<unsigned char> marks, detail::unit_marks& seen,
                   pool const& of, int* freed) {
    detail::slot_kernels const& passes = detail::slots_for(simd_level);
    std::fill_n(marks.data(), row.committed, static_cast<unsigned char>(0));
    for (int const e : row.kept) marks[static_cast<std::size_t>(e)] = 1;
    if (row.map != nullptr) passes.redirect(marks.data(), row.position, row.committed, of.dead, row.map);
    passes.split(marks.data(), row.committed, row.gone(), row.slot, freed);
    std::copy_n(row.slot + row.committed, row.drafts, row.slot + row.kept.size());
    std::copy_n(freed, row.gone(), row.slot + row.remaining());
    if (unused_once(passes, marks, seen, of, row, freed)) return row.gone();
    clear_marks(seen, of.units, row.slot, row.committed + row.drafts);
    for (int i = 0; i < row.remaining(); ++i) seen.set(row.slot[i]);
    int count = 0;
    for (int i = 0; i < row.gone(); ++i) {
      int const unit = freed[i];
      if (unit == of.dead || seen.has(unit)) continue;
      seen.set(unit);
      freed[count++] = unit;
    }
    return count;
  }

  /// True if all slots of dropped entries differ, and none is the dead slot or that of an entry that remains. In a
  /// small pool every unit has a byte, so that no mark waits for the one before it. In a large pool the answer is
  /// false.
  static bool unused_once(detail::slot_kernels const& passes, std::span<unsigned char> marks, detail::unit_marks& seen,
                          pool const& of, edited_row const& row, int const* dropped) {
    bool const has_dead = of.dead >= 0 && of.dead < of.units;
    if (static_cast<std::uint64_t>(of.units) > marks.size()) {
      clear_marks(seen, of.units, row.slot, row.committed + row.drafts);
      if (has_dead) seen.clear(of.dead);
      bool used = !seen.set_all(dropped, row.gone()) || (has_dead && seen.has(of.dead));
      for (int i = 0; i < row.remaining(); ++i) used = used | seen.has(row.slot[i]);
      return !used;
    }
    std::fill_n(marks.data(), of.units, static_cast<unsigned char>(0));
    detail::mark_units(marks.data(), dropped, row.gone());
    if (has_dead && marks[static_cast<std::size_t>(of.dead)] != 0) return false;
    unsigned used = 0;
    for (int i = 0; i < row.remaining(); ++i) used |= marks[static_cast<std::size_t>(row.slot[i])];
    return used == 0 && passes.count_set(marks.data(), of.units) == row.gone();
  }
};

#if !defined(KVPOLICY_COMPILED)
template <>
struct implementation<ops::relist_t, host> {
  static constexpr bool provided = true;

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
    each_row([&](lane this_lane, int count, int const* position, int const* slot) {
      if (!sound(exec.simd_level(), in.where.units, dead, length, {position, slot, count})) {
        refuse(in.where.units, dead, length, {position, slot, count}, this_lane);
      }
    });
    each_row([&](lane this_lane, int count, int const* position, int* slot) {
      int* const live = detail::list_row(list, in.where, this_lane);
      if (ascends(position, count) && count > length / 16) {
        return take(exec.simd_level(), {position, slot, count}, dead, length, slot, live);
      }
      for (int e = 0; e < count; ++e) live[e] = slot[position[e]];
      std::fill_n(slot, length, dead);
      for (int e = 0; e < count; ++e) slot[position[e]] = live[e];
    });
  }

 private:
  /// The live entries of a lane, and its row of the map.
  struct mapped {
    int const* position;
    int const* slot;
    int count;
  };

  /// True if no position is below 0, and each is above the one before it.
  KVPOLICY_VECTORIZED static bool ascends(int const* position, int count) {
    int wrong = count > 0 && position[0] < 0 ? 1 : 0;
    for (int e = 1; e < count; ++e) wrong |= position[e] <= position[e - 1] ? 1 : 0;
    return wrong == 0;
  }

  /// Edits a lane's list and its row of the map, in one pass over that row, for positions that ascend.
  static void take(isa simd_level, mapped const& of, int dead, int length, int* map, int* live) {
    constexpr int step = 2048;
    unsigned char marks[step];
    int taken = 0;
    for (int begin = 0; begin < length; begin += step) {
      int const some = std::min(step, length - begin);
      std::fill_n(marks, some, static_cast<unsigned char>(0));
      int const* const end = std::lower_bound(of.position + taken, of.position + of.count, begin + some);
      for (int const* at = of.position + taken; at != end; ++at) marks[*at - begin] = 1;
      taken += detail::slots_for(simd_level).take(marks, some, dead, map + begin, of.count - taken, live + taken);
    }
  }

  /// True if every live entry is at a slot of the pool that is not the dead one. Whole rows are compared first: a map
  /// that names no dead slot needs no look at each entry's position.
  static bool sound(isa simd_level, std::int64_t units, int dead, int length, mapped const& of) {
    auto const pool = static_cast<unsigned>(std::min(units, std::int64_t{1} << 31));
    detail::slot_kernels const& passes = detail::slots_for(simd_level);
    if (!passes.inside(of.position, of.count, static_cast<unsigned>(length), -1)) return false;
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

#endif

}  // namespace KVPOLICY_NAMESPACE
