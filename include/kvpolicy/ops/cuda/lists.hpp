// SPDX-License-Identifier: Apache-2.0
// Device implementations of the verbs that edit lists of units.
#pragma once

#include <kvpolicy/ops/cuda/entries.hpp>
#include <kvpolicy/ops/cuda/lists/list_checks.hpp>
#include <kvpolicy/ops/cuda/lists/rewrite.hpp>
#include <kvpolicy/ops/lists.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The arguments of `relist`: lists and maps of one sequence, after a prefix tree has rewritten the map.
struct relisting {
  kvpolicy::lanes lanes;
  locator where;
  by_lane<int> list;
  by_lane<int> map;
  by_lane<int const> map_begin;
  row_owners rows;
  int dead;
  int sequence;
  int length;
};

/// Checks that the map has a live slot for each entry of the list, one thread for each entry.
struct relist_check {
  relisting of;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, device_error faults, std::int64_t i) const {
    lane const one = of.rows.at(of.sequence, static_cast<int>(i / of.lanes.capacity));
    auto const e = static_cast<int>(i % of.lanes.capacity);
    if (e >= *of.lanes.count.row(one)) return;
    int const position = of.lanes.position.row(one)[e];
    int const at = position < of.length ? map_row(of.map, of.map_begin, one)[position] : -1;
    bool const live = at >= 0 && at < of.where.units && at != of.dead;
    if (!live) report_fault(block, faults, fault::relist_slot, of.lanes.index(one), at);
  }
};

/// Sets the list from the map, one thread for each position: a live entry gets its slot from the map, and the map's
/// other positions get the dead slot.
struct relist_position {
  relisting of;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    lane const one = of.rows.at(of.sequence, static_cast<int>(i / of.length));
    auto const p = static_cast<int>(i % of.length);
    int const* const position = of.lanes.position.row(one);
    int const count = *of.lanes.count.row(one);
    int const e = lane_entries{one, count, 0, position}.first_at(p);
    int& slot = map_row(of.map, of.map_begin, one)[p];
    if (e < count && position[e] == p) {
      writable_list(of.list, of.where, one)[e] = slot;
    } else {
      slot = of.dead;
    }
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::rewrite_list_t, Backend> {
  /// The bytes of scratch that any verb needs which edits the lists of this cache.
  static std::size_t scratch(cache const& in) {
    int const rows = detail::owners_of(detail::rows_of(in.where, in.where.table), in.lanes).count();
    std::size_t const blocks = static_cast<std::size_t>(blocks_for(in, rows));
    std::size_t const rewriting = blocks * static_cast<std::size_t>(kernel<nobody>::scratch_of_block(in));
    std::size_t const checking = implementation<ops::check_list_t, Backend>::scratch(in);
    return rewriting < checking ? checking : rewriting;
  }

  template <class Executor, class Shared>
  static void run(Executor& exec, keep_set const& keep, cache const& in, list_edit<Shared> const& edit,
                  std::int64_t* freed) {
    detail::row_owners const rows = detail::owners_of(detail::rows_of(in.where, edit.list), keep.lanes);
    int const blocks = blocks_for(in, rows.count());
    detail::check_scratch("rewrite_list", exec,
                          static_cast<std::size_t>(blocks * kernel<nobody>::scratch_of_block(in)));
    auto const threads = exec.threads().segment;
    detail::launch_unless_fault(exec, launch_shape{blocks, threads, kernel<Shared>::shared_bytes(threads)},
                                kernel<Shared>{keep, in, edit, rows, exec.scratch(), freed});
  }

 private:
  template <class Shared>
  using kernel = detail::rewrite_kernel<Shared>;

  /// One block for every row, or as many as have their scratch in 16 MiB; at least one.
  static int blocks_for(cache const& in, int rows) {
    std::int64_t const fit = (std::int64_t{1} << 24) / kernel<nobody>::scratch_of_block(in);
    return fit < 1 ? 1 : fit < rows ? static_cast<int>(fit) : rows;
  }
};

template <kernel_backend Backend>
struct implementation<ops::relist_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, cache const& in, by_lane<int> const& list, by_lane<int> const& map,
                  by_lane<int const> const& map_begin, int dead, int sequence, int length) {
    detail::row_owners const rows = detail::owners_of(detail::rows_of(in.where, list), in.lanes);
    detail::relisting const of{in.lanes, in.where, list, map, map_begin, rows, dead, sequence, length};
    std::int64_t const of_sequence = rows.of_sequence();
    detail::launch_check(exec, of_sequence * in.lanes.capacity, detail::relist_check{of});
    detail::launch_each_unless_fault(exec, of_sequence * length, detail::relist_position{of});
  }
};

}  // namespace KVPOLICY_NAMESPACE
