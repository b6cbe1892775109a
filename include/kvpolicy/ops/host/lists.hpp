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
    clear_marks(seen, in.where.units, slot, committed + drafts);
    int const gone = detail::list_dropped(simd_level, kept, committed, dropped);
    int* const map = edit.map.data != nullptr ? detail::map_row(edit.map, edit.map_begin, this_lane) : nullptr;
    for (int i = 0; i < gone && map != nullptr; ++i) map[position[dropped[i]]] = edit.dead;
    bool const once = seen.set_all(slot, committed + drafts);
    appender freed(edit.freed, this_lane);
    appender released(edit.released, this_lane);
    if (once && std::is_same_v<Shared, nobody> && detail::number_of(edit.locked, this_lane) <= 0 &&
        !(edit.dead >= 0 && edit.dead < in.where.units && seen.has(edit.dead))) {
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

  static void run(host_executor&, cache const& in, by_lane<int> const& list, by_lane<int> const& map,
                  by_lane<int const> const& map_begin, int dead, int sequence, int length) {
    auto const each_row = [&](auto const& visit) {
      for (int layer = in.lanes.layer_begin; layer < in.lanes.layer_end; ++layer) {
        for (int head = 0; head < in.lanes.heads; ++head) {
          lane const this_lane{sequence, layer, head};
          by_lane<int> const rows = detail::rows_of(in.where, list);
          if ((rows.layer != 0 || layer == in.lanes.layer_begin) && (rows.head != 0 || head == 0))
            visit(this_lane, *in.lanes.count.row(this_lane), in.lanes.position.row(this_lane),
                  detail::map_row(map, map_begin, this_lane));
        }
      }
    };
    each_row([&](lane this_lane, int count, int const* position, int const* slot) {
      for (int e = 0; e < count; ++e) {
        int const at = position[e] < length ? slot[position[e]] : -1;
        expects(
            at >= 0 && at < in.where.units && at != dead, "relist", "map",
            [&] {
              return std::to_string(at) + " at position " + std::to_string(position[e]) + " of " +
                     detail::spell_lane(this_lane);
            },
            "a live entry is at a slot of the pool that is not the dead one");
      }
    });
    each_row([&](lane this_lane, int count, int const* position, int* slot) {
      int* const live = detail::list_row(list, in.where, this_lane);
      for (int e = 0; e < count; ++e) live[e] = slot[position[e]];
      std::fill_n(slot, length, dead);
      for (int e = 0; e < count; ++e) slot[position[e]] = live[e];
    });
  }
};

#endif

}  // namespace KVPOLICY_NAMESPACE
