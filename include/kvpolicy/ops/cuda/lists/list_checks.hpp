// SPDX-License-Identifier: Apache-2.0
// Device implementation of check_list, which finds errors in the contents of lists, maps and keep sets.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/cuda/lists/rows.hpp>
#include <kvpolicy/ops/lists.hpp>
#include <limits>
#include <string>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The pools of units that the rows of a list refer to. Layers or heads whose planes have the same address share a
/// pool.
template <class T>
[[nodiscard]] row_owners pools_of(cache const& in, by_lane<T> const& list) {
  by_lane<T> const rows = rows_of(in.where, list);
  bool const one_of_layers = in.k.layer_stride == 0 && in.k.bases.layer == 0;
  bool const one_of_heads = in.k.head_stride == 0 && in.k.bases.head == 0;
  return {in.lanes, false, rows.layer != 0 && !one_of_layers, rows.head != 0 && !one_of_heads};
}

/// How many pools have their marks (one int for each unit) in scratch at once: as many as fit in 16 MiB, at least one.
[[nodiscard]] inline int pools_at_once(cache const& in, row_owners const& pools) {
  constexpr std::int64_t most = std::int64_t{1} << 22;
  std::int64_t const fit = in.where.units > 0 ? most / in.where.units : 1;
  int const all = pools.count();
  return fit < 1 ? 1 : fit < all ? static_cast<int>(fit) : all;
}

/// The marks of some pools. The mark of a unit is the number of the first entry that refers to it as its lane's own.
struct unit_claims {
  unsigned* first;  ///< null: no marks are needed
  std::int64_t units;
  row_owners pools;
  int pool_begin;
  int pool_end;

  static constexpr unsigned nobody = 0xFFFFFFFFu;
  [[nodiscard]] KVPOLICY_HD bool in_pool(int unit) const { return unit >= 0 && unit < units; }
  /// The marks of a lane's pool, or null if the pool is not one of [pool_begin, pool_end).
  [[nodiscard]] KVPOLICY_HD unsigned* of(lane one) const {
    int const pool = pools.row(one);
    return first != nullptr && pool >= pool_begin && pool < pool_end ? first + (pool - pool_begin) * units : nullptr;
  }
};

/// The rows of a list, and the entries that each block checks. Entries of all rows are numbered in the order of rows.
template <class Shared>
struct list_pieces {
  keep_set keep;
  kvpolicy::lanes lanes;
  locator where;
  list_edit<Shared> edit;
  row_owners rows;
  int pieces;
  int entries;
  unit_claims claims;
  device_error faults;

  [[nodiscard]] KVPOLICY_HD lane owner(int block) const { return rows.at(block / pieces); }
  [[nodiscard]] KVPOLICY_HD ordinal_range range(int block, int count) const {
    int const begin = block % pieces * entries;
    return {begin, min_op{}(count, begin + entries)};
  }
  [[nodiscard]] KVPOLICY_HD unsigned number(int block, int entry) const {
    return static_cast<unsigned>(block / pieces) * static_cast<unsigned>(lanes.capacity) + static_cast<unsigned>(entry);
  }
};

/// Checks each entry by itself, and marks its unit.
template <class Shared>
struct check_entries_kernel {
  list_pieces<Shared> of;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = of.owner(block.index());
    if (of.claims.pool_begin == 0) check_prefix(block, one);
    int const* const slot = writable_list(of.edit.list, of.where, one);
    int const* const position = of.lanes.position.row(one);
    int const tree = number_or_zero(of.edit.locked_prefix, one);
    unsigned* const first = of.claims.of(one);
    ordinal_range const range = of.range(block.index(), *of.lanes.count.row(one));
    for (int e = range.begin + block.thread(); e < range.end; e += block.threads()) {
      check_slot(block, one, slot[e], position[e]);
      if (first != nullptr && position[e] >= tree && of.claims.in_pool(slot[e])) {
        block.atomic_min(first + slot[e], of.number(block.index(), e));
      }
    }
  }

 private:
  template <class Block>
  KVPOLICY_HD void check_slot(Block& block, lane one, int slot, int position) const {
    int const index = of.lanes.index(one);
    if (!of.claims.in_pool(slot)) return report_fault(block, of.faults, fault::list_slot, index, slot);
    if (slot == of.edit.dead) return report_fault(block, of.faults, fault::list_dead_slot, index, position);
    if (of.edit.map.data == nullptr) return;
    if (map_row(of.edit.map, of.edit.map_begin, one)[position] == slot) return;
    report_fault(block, of.faults, fault::list_map, index, position);
  }

  /// Checks that the protected positions are kept, and that the map does not have the dead slot for them.
  template <class Block>
  KVPOLICY_HD void check_prefix(Block& block, lane one) const {
    int const prefix = number_or_zero(of.edit.protected_prefix, one);
    int const committed = of.lanes.committed(one);
    if (prefix <= 0 || committed <= 0) return;
    int const* const position = of.lanes.position.row(one);
    listed_row const kept = listed_for(of.keep, one);
    int const index = of.lanes.index(one);
    ordinal_range const range = of.range(block.index(), committed);
    for (int e = range.begin + block.thread(); e < range.end && position[e] < prefix; e += block.threads()) {
      bool const stays = e < kept.count && kept.ordinal[e] == e;
      if (!stays) report_fault(block, of.faults, fault::list_prefix, index, position[e]);
    }
    if (of.edit.map.data == nullptr) return;
    int const* const map = map_row(of.edit.map, of.edit.map_begin, one);
    int const end = min_op{}(prefix, position[committed - 1] + 1);
    int const step = of.pieces * block.threads();
    for (int p = block.index() % of.pieces * block.threads() + block.thread(); p < end; p += step) {
      if (map[p] == of.edit.dead) report_fault(block, of.faults, fault::list_dead_slot, index, p);
    }
  }
};

/// Records a fault for units that two lists contain, or two entries of one list, where that is not allowed.
template <class Shared>
struct check_claims_kernel {
  list_pieces<Shared> of;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = of.owner(block.index());
    unsigned const* const first = of.claims.of(one);
    if (first == nullptr) return;
    int const* const slot = writable_list(of.edit.list, of.where, one);
    unsigned const begin = of.number(block.index(), 0);
    ordinal_range const range = of.range(block.index(), *of.lanes.count.row(one));
    for (int e = range.begin + block.thread(); e < range.end; e += block.threads()) {
      if (!of.claims.in_pool(slot[e])) continue;
      unsigned const claimed = first[slot[e]];
      bool const elsewhere =
          claimed != unit_claims::nobody && claimed - begin >= static_cast<unsigned>(of.lanes.capacity);
      bool const twice = of.edit.distinct && claimed < of.number(block.index(), e);
      if ((elsewhere && !of.edit.shared(slot[e])) || twice) {
        report_fault(block, of.faults, fault::list_shared, of.lanes.index(one), slot[e]);
      }
    }
  }
};

struct clear_claims {
  unsigned* first;
  KVPOLICY_HD void operator()(std::int64_t i) const { first[i] = unit_claims::nobody; }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::check_list_t, Backend> {
  /// Bytes of scratch, for lists of any kind.
  static std::size_t scratch(cache const& in) {
    int const pools = detail::pools_at_once(in, detail::pools_of(in, in.where.table));
    return static_cast<std::size_t>(in.where.units) * static_cast<std::size_t>(pools) * sizeof(unsigned);
  }

  /// Takes one launch where no two entries could have the same unit, else three for every 16 MiB of marks.
  template <class Executor, class Shared>
  static void run(Executor& exec, keep_set const& keep, cache const& in, list_edit<Shared> const& edit) {
    detail::row_owners const rows = detail::owners_of(detail::rows_of(in.where, edit.list), keep.lanes);
    expects(std::int64_t{rows.count()} * in.lanes.capacity < std::int64_t{std::numeric_limits<unsigned>::max()},
            "apply", "lanes.capacity", in.lanes.capacity, "lists have fewer than 2^32 entries, in all");
    int const pieces = detail::pieces_of(exec, in.lanes.capacity);
    detail::row_owners const pools = detail::pools_of(in, edit.list);
    int const count = pools.count();
    detail::unit_claims const none{nullptr, in.where.units, pools, 0, count};
    int const entries = exec.config().entries_of_a_block;
    detail::list_pieces<Shared> of{keep, in.lanes, in.where, edit, rows, pieces, entries, none, exec.faults()};
    launch_shape const each{rows.count() * pieces, exec.threads().entry, 0};
    if (rows.count() == count && !edit.distinct) return exec.launch(each, detail::check_entries_kernel<Shared>{of});
    int const at_once = detail::pools_at_once(in, pools);
    detail::check_scratch("check_list", exec, scratch(in));
    of.claims.first = reinterpret_cast<unsigned*>(exec.scratch());
    for (int begin = 0; begin < count; begin += at_once) {
      of.claims.pool_begin = begin;
      of.claims.pool_end = begin + at_once;
      detail::launch_each(exec, in.where.units * at_once, detail::clear_claims{of.claims.first});
      exec.launch(each, detail::check_entries_kernel<Shared>{of});
      exec.launch(each, detail::check_claims_kernel<Shared>{of});
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
