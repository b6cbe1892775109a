// Host implementations of the verbs that edit lists and tables of units.
#pragma once

#include <algorithm>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/ops/host/check_list.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/listed_marks.hpp>
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
    void add(int const* units, int many) {
      if (to_ != nullptr) std::copy_n(units, many, to_ + count_);
      count_ += many;
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

  /// Bytes of scratch that may hold a mark for each unit: a second row of ints.
  static std::size_t bytes_of_marks(cache const& in) {
    return sizeof(int) * (static_cast<std::size_t>(in.lanes.bound) + 1);
  }

  /// True if a list names every slot once. `dead_listed` becomes whether it names the dead slot. In a small pool every
  /// unit has a byte, so that no mark waits for the one before it, and as many marks as slots mean that all differ.
  static bool each_once(detail::unit_marks& seen, std::byte* bytes, std::size_t size, std::int64_t units,
                        int const* slot, int count, int dead, bool& dead_listed) {
    bool const in_pool = dead >= 0 && dead < units;
    if (static_cast<std::uint64_t>(units) > size) {
      clear_marks(seen, units, slot, count);
      bool const once = seen.set_all(slot, count);
      dead_listed = in_pool && once && seen.has(dead);
      return once;
    }
    std::fill_n(bytes, units, std::byte{0});
    for (int e = 0; e < count; ++e) bytes[slot[e]] = std::byte{1};
    int marked = 0;
    for (std::int64_t unit = 0; unit < units; ++unit) marked += std::to_integer<int>(bytes[unit]);
    dead_listed = in_pool && bytes[dead] != std::byte{0};
    return marked == count;
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

  /// Rewrites one list: kept slots at the front, drafts behind them, then the slots of dropped entries. Returns the
  /// number of freed slots.
  template <class Shared>
  static std::int64_t rewrite(isa simd_level, std::span<std::byte> memory, std::span<int const> kept, cache const& in,
                              list_edit<Shared> const& edit, lane this_lane) {
    int const committed = in.lanes.committed(this_lane);
    int const drafts = *in.lanes.count.row(this_lane) - committed;
    int* const slot = detail::list_row(edit.list, in.where, this_lane);
    int const* const position = in.lanes.position.row(this_lane);
    detail::scratch_arena arena(memory);
    detail::unit_marks seen(arena.take<std::uint64_t>(detail::unit_marks::words_for(in.where.units)));
    int* const dropped = arena.take<int>(static_cast<std::size_t>(in.lanes.bound) + 1);
    int const gone = detail::list_dropped(simd_level, kept, committed, dropped);
    int* const map = edit.map.data != nullptr ? detail::map_row(edit.map, edit.map_begin, this_lane) : nullptr;
    for (int i = 0; i < gone && map != nullptr; ++i) map[position[dropped[i]]] = edit.dead;
    auto* const bytes = arena.take<std::byte>(bytes_of_marks(in));
    bool dead_listed = true;
    bool const once =
        each_once(seen, bytes, bytes_of_marks(in), in.where.units, slot, committed + drafts, edit.dead, dead_listed);
    appender freed(edit.freed, this_lane);
    appender released(edit.released, this_lane);
    if (once && std::is_same_v<Shared, nobody> && detail::number_of(edit.locked, this_lane) <= 0 && !dead_listed) {
      for (int i = 0; i < gone; ++i) dropped[i] = slot[dropped[i]];
      freed.add(dropped, gone);
    } else {
      clear_marks(seen, in.where.units, slot, committed + drafts);
      for (int const e : kept) seen.set(slot[e]);
      for (int e = committed; e < committed + drafts; ++e) seen.set(slot[e]);
      release(edit, detail::number_of(edit.locked, this_lane), seen, position, slot, {dropped, gone}, freed, released);
    }
    detail::lane_moves const moves{kept, committed, drafts};
    for (int i = moves.first(); i < moves.count(); ++i) slot[i] = slot[moves.source(i)];
    std::copy_n(dropped, gone, slot + kept.size() + static_cast<std::size_t>(drafts));
    return freed.count();
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
      if (!sound(in.where.units, dead, length, {position, slot, count})) {
        refuse(in.where.units, dead, length, {position, slot, count}, this_lane);
      }
    });
    each_row([&](lane this_lane, int count, int const* position, int* slot) {
      int* const live = detail::list_row(list, in.where, this_lane);
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

  /// True if every live entry is at a slot of the pool that is not the dead one. There is no branch for an entry.
  static bool sound(std::int64_t units, int dead, int length, mapped const& of) {
    unsigned outside = 0;
    for (int e = 0; e < of.count; ++e) outside |= static_cast<unsigned>(of.position[e] >= length);
    if (outside != 0) return false;
    auto const pool = static_cast<unsigned>(std::min(units, std::int64_t{1} << 31));
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
