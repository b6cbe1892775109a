// SPDX-License-Identifier: Apache-2.0
// The host implementation of check_list, which compares lists, maps and keep sets before anything is edited.
#pragma once

#include <algorithm>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/slots.hpp>
#include <kvpolicy/ops/host/unit_marks.hpp>
#include <kvpolicy/ops/host/unit_owners.hpp>
#include <kvpolicy/ops/lists.hpp>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::check_list_t, host> {
  static std::size_t scratch(cache const& in) {
    return 2 * detail::scratch_of<std::uint64_t>(detail::unit_marks::words_for(in.where.units)) +
           detail::scratch_of<unsigned char>(detail::bytes_of_marks(in));
  }

  template <class Shared>
  static void run(host_executor& exec, keep_set const& keep, cache const& in, list_edit<Shared> const& edit) {
    std::size_t const words = detail::unit_marks::words_for(in.where.units);
    detail::unit_pools const pools(in, edit.list, keep.lanes);
    exec.for_each(pools.count(), [&](int pool, int worker) {
      detail::scratch_arena arena(exec.scratch(worker));
      detail::unit_marks owned(arena.take<std::uint64_t>(words));
      detail::unit_marks locked(arena.take<std::uint64_t>(words));
      auto* const marks = arena.take<unsigned char>(detail::bytes_of_marks(in));
      auto const each_row = [&](auto const& visit) { pools.for_each_row(keep.lanes, pool, visit); };
      if (stand_alone(exec, in, edit, each_row, owned, marks)) {
        return each_row([&](lane this_lane) { check_prefix(keep, in, edit, this_lane); });
      }
      owned.clear_all(in.where.units);
      locked.clear_all(in.where.units);
      bool const one_row = keep.lanes.sequences == 1 && pools.of_single_lanes(keep.lanes);
      each_row([&](lane this_lane) {
        bool const alone =
            !edit.distinct && one_row && sound(exec, in, edit, this_lane, {0, *in.lanes.count.row(this_lane)});
        check_row(keep, in, edit, this_lane, alone, owned, locked);
      });
    });
  }

 private:
  /// True if every slot of a pool's lists is valid, and none stands in two places. This is a fast check for lists whose
  /// slots have one owner; a slower one then finds the error.
  template <class Shared, class EachRow>
  static bool stand_alone(host_executor const& exec, cache const& in, list_edit<Shared> const& edit,
                          EachRow const& each_row, detail::unit_marks& owned, unsigned char* marks) {
    bool const one_owner = std::is_same_v<Shared, nobody> && edit.distinct && edit.locked_prefix.data == nullptr;
    if (!one_owner) return false;
    bool const small = in.where.units <= static_cast<std::int64_t>(detail::bytes_of_marks(in));
    if (small) {
      std::fill_n(marks, in.where.units, static_cast<unsigned char>(0));
    } else {
      owned.clear_all(in.where.units);
    }
    bool alone = true;
    std::int64_t listed = 0;
    each_row([&](lane this_lane) {
      int const count = *in.lanes.count.row(this_lane);
      int const* const slot = detail::writable_list(edit.list, in.where, this_lane);
      constexpr int part = 128;  // each is marked while the next one is fetched
      for (int begin = 0; begin < count && alone; begin += small ? part : count) {
        ordinal_range const some{begin, small ? std::min(begin + part, count) : count};
        alone = sound(exec, in, edit, this_lane, some);
        if (alone && small) detail::mark_units(marks, slot + begin, some.end - begin);
      }
      if (alone && !small) alone = owned.set_all(slot, count);
      listed += count;
    });
    return alone && (!small || detail::count_set(marks, in.where.units) == listed);
  }

  /// True if each slot of some entries of a row is valid. This is a fast check; a slower one then finds the error.
  template <class Shared>
  static bool sound(host_executor const& exec, cache const& in, list_edit<Shared> const& edit, lane this_lane,
                    ordinal_range which) {
    int const count = which.end - which.begin;
    int const* const slot = detail::writable_list(edit.list, in.where, this_lane) + which.begin;
    int const* const position = in.lanes.position.row(this_lane) + which.begin;
    auto const units = static_cast<unsigned>(std::min(in.where.units, std::int64_t{1} << 31));
    detail::slots_kernels const& passes = detail::slots_of_isa[exec.simd_level()];
    if (!passes.inside(slot, count, units, edit.dead)) return false;
    if (edit.map.data == nullptr) return true;
    return passes.matches_map(slot, position, count, detail::map_row(edit.map, edit.map_begin, this_lane));
  }

  template <class Shared>
  static void check_row(keep_set const& keep, cache const& in, list_edit<Shared> const& edit, lane this_lane,
                        bool alone, detail::unit_marks& owned, detail::unit_marks& locked) {
    check_prefix(keep, in, edit, this_lane);
    if (!alone) return check_slots(in, edit, this_lane, owned, locked);
    // An exception of `shared` must be thrown before anything changes.
    int const* const slot = detail::writable_list(edit.list, in.where, this_lane);
    for (int e = in.lanes.committed(this_lane) - 1; e >= 0; --e) static_cast<void>(edit.shared(slot[e]));
  }

  template <class Shared>
  static void check_slots(cache const& in, list_edit<Shared> const& edit, lane this_lane, detail::unit_marks& owned,
                          detail::unit_marks& locked) {
    int const count = *in.lanes.count.row(this_lane);
    int const* const slot = detail::writable_list(edit.list, in.where, this_lane);
    int const* const position = in.lanes.position.row(this_lane);
    int const tree = detail::number_or_zero(edit.locked_prefix, this_lane);
    for (int e = 0; e < count; ++e) {
      auto const refuse = [&](bool ok, auto const& rule) {
        expects(ok, "apply", "list", [&] { return at(slot[e], position[e], this_lane); }, rule);
      };
      refuse(slot[e] >= 0 && slot[e] < in.where.units,
             [&] { return "the pool has " + std::to_string(in.where.units) + " slots"; });
      refuse(slot[e] != edit.dead, "a live entry is not at the dead slot");
      if (edit.map.data != nullptr) {
        int const mapped = detail::map_row(edit.map, edit.map_begin, this_lane)[position[e]];
        refuse(slot[e] == mapped,
               [&] { return "the map says " + std::to_string(mapped) + ": relist after the map was rewritten"; });
      }
      bool const alone = position[e] >= tree && !edit.shared(slot[e]);
      refuse(!(owned.has(slot[e]) && !edit.shared(slot[e])) && !(alone && locked.has(slot[e])),
             "another sequence has that slot, and `shared` does not say so");
    }
    for (int e = 0; e < count; ++e) {
      expects(
          !edit.distinct || !owned.has(slot[e]), "apply", "list", [&] { return at(slot[e], position[e], this_lane); },
          "an entry before it has that slot");
      (position[e] < tree ? locked : owned).set(slot[e]);
    }
  }

  static std::string at(int slot, int position, lane this_lane) {
    return "slot " + std::to_string(slot) + " at position " + std::to_string(position) + " of " +
           detail::spell_lane(this_lane);
  }

  template <class Shared>
  static void check_prefix(keep_set const& keep, cache const& in, list_edit<Shared> const& edit, lane this_lane) {
    int const prefix = detail::number_or_zero(edit.protected_prefix, this_lane);
    int const committed = in.lanes.committed(this_lane);
    int const* const position = in.lanes.position.row(this_lane);
    auto const kept = keep.listed(segment_of(keep.lanes, keep.decides, keep.lanes.index(this_lane)));
    for (int e = 0; e < committed && position[e] < prefix; ++e) {
      bool const stays = e < std::ssize(kept) && kept[static_cast<std::size_t>(e)] == e;
      expects(
          stays, "apply", "plan.keep", [&] { return "position " + std::to_string(position[e]) + " dropped"; },
          [&] { return "the first " + std::to_string(prefix) + " positions are protected: force them, too"; });
    }
    if (edit.map.data == nullptr || committed == 0) return;
    int const* const map = detail::map_row(edit.map, edit.map_begin, this_lane);
    for (int p = 0; p < prefix && p <= position[committed - 1]; ++p) {
      expects(
          map[p] != edit.dead, "apply", "map", [&] { return "the dead slot at position " + std::to_string(p); },
          [&] { return "the first " + std::to_string(prefix) + " positions are protected"; });
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
