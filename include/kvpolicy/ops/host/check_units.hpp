// SPDX-License-Identifier: Apache-2.0
// Host implementation of check_units.
#pragma once

#include <algorithm>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/kernels/slots.hpp>
#include <kvpolicy/ops/host/unit_owners.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::check_units_t, host> {
  static std::size_t scratch(cache const& in) {
    bool const has_units = detail::names_units(in.where);
    return has_units ? detail::scratch_of<std::uint64_t>(detail::unit_marks::words_for(in.where.units)) : 0;
  }

  static void run(host_executor& exec, keep_set const& keep, cache const& in, bool moves) {
    if (!detail::names_units(in.where)) return;
    detail::unit_pools const pools(in, in.where.table, keep.lanes);
    detail::slots_kernels const& passes = detail::slots_of_isa[exec.simd_level()];
    auto const units = static_cast<unsigned>(std::min(in.where.units, std::int64_t{1} << 31));
    detail::scratch_arena arena(exec.scratch(0));
    detail::unit_marks written(moves ? arena.take<std::uint64_t>(detail::unit_marks::words_for(in.where.units))
                                     : nullptr);
    for (int pool = 0; pool < pools.count(); ++pool) {
      bool any = false;
      pools.for_each_row(keep.lanes, pool, [&](lane one) {
        int const used = pools.units_of(in, one);
        if (!passes.inside(in.where.list(one), used, units, -1)) refuse_outside(in, one, used);
        any = any || (moves && !written_by(pools, keep, in, one).empty());
      });
      if (any) check_moves(pools, pool, keep, in, written);
    }
  }

 private:
  /// The indices of the units of a row into which its lanes' rows move.
  struct unit_range {
    int begin;
    int end;
    [[nodiscard]] bool empty() const { return begin >= end; }
    [[nodiscard]] bool has(int unit) const { return unit >= begin && unit < end; }
  };
  static unit_range written_by(detail::unit_pools const& pools, keep_set const& keep, cache const& in, lane owner) {
    int begin = in.lanes.capacity, end = 0;
    pools.for_each_sharing(keep.lanes, owner, [&](lane one) {
      detail::lane_moves const moves = detail::moves_of(keep, in, keep.lanes.index(one));
      int const first = moves.first_moved();
      if (first >= moves.count()) return;
      begin = std::min(begin, first / in.where.unit_tokens);
      end = std::max(end, (moves.count() - 1) / in.where.unit_tokens + 1);
    });
    return {begin, end};
  }

  static void check_moves(detail::unit_pools const& pools, int pool, keep_set const& keep, cache const& in,
                          detail::unit_marks& written) {
    auto const refuse_unless = [&](bool unused, lane one, int i) {
      expects(
          unused, "apply", "cache.where.table", [&] { return at(in, one, i); },
          "another entry has this place, too, and rows would be moved there: copy_on_write gives a slot its own");
    };
    written.clear_all(in.where.units);
    pools.for_each_row(keep.lanes, pool, [&](lane one) {
      int const* const unit = in.where.list(one);
      unit_range const mine = written_by(pools, keep, in, one);
      for (int i = mine.begin; i < mine.end; ++i) {
        refuse_unless(!written.has(unit[i]), one, i);
        written.set(unit[i]);
      }
    });
    pools.for_each_row(keep.lanes, pool, [&](lane one) {
      int const* const unit = in.where.list(one);
      unit_range const mine = written_by(pools, keep, in, one);
      int const used = pools.units_of(in, one);
      for (int i = 0; i < used; ++i) refuse_unless(mine.has(i) || !written.has(unit[i]), one, i);
    });
  }

  static void refuse_outside(cache const& in, lane one, int used) {
    int const* const unit = in.where.list(one);
    for (int i = 0; i < used; ++i) {
      expects(
          unit[i] >= 0 && unit[i] < in.where.units, "apply", "cache.where.table", [&] { return at(in, one, i); },
          [&] { return "the pool has units 0 to " + std::to_string(in.where.units - 1); });
    }
  }
  static std::string at(cache const& in, lane one, int i) {
    return std::to_string(in.where.list(one)[i]) + " (entry " + std::to_string(i * in.where.unit_tokens) + " of " +
           detail::spell_lane_of(in.lanes, one) + ")";
  }
};

}  // namespace KVPOLICY_NAMESPACE
