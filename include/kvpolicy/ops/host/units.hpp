// SPDX-License-Identifier: Apache-2.0
// Host implementation of drop_units. fill_holes is in units_holes.hpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <kvpolicy/ops/host/check_units.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/host/unit_owners.hpp>
#include <kvpolicy/ops/host/units_holes.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/units.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::drop_units_t, host> {
  static std::size_t scratch(cache const& in) {
    if (!detail::names_units(in.where)) return 0;
    auto const most = static_cast<std::size_t>(in.lanes.capacity);  // a lane has at least as many entries as blocks
    return 2 * detail::scratch_of<int>(most + 1) + detail::scratch_of<unsigned char>(most) +
           detail::abandoned_units::scratch(in) + detail::scratch_of<left>(static_cast<std::size_t>(in.lanes.size()));
  }

  template <class Shared>
  static void run(host_executor& exec, keep_set const& keep, cache const& in, list_edit<Shared> const& edit,
                  std::span<recorded_column const> columns, std::int64_t* entries) {
    drop(exec, keep, in, detail::with_any_shared(edit), columns, entries);
  }

  static void drop(host_executor& exec, keep_set const& keep, cache const& in,
                   list_edit<detail::any_shared> const& edit, std::span<recorded_column const> columns,
                   std::int64_t* entries) {
    by_lane<int> const rows = detail::rows_of(in.where, edit.list);
    // Where no two lanes share a row of the table or a count, nobody else reads what a lane writes.
    bool const alone = has_own_row(rows, keep.lanes) && has_own_row(in.lanes.count, keep.lanes);
    bool const asks = edit.freed.count.data != nullptr || edit.released.count.data != nullptr || entries != nullptr;
    // Where each row has a pool of its own, all of its blocks that leave are freed.
    bool const owned = alone && detail::unit_pools(in, edit.list, keep.lanes).of_single_lanes(keep.lanes) &&
                       detail::of_all_slots(in).lanes.sequences == 1;
    std::atomic<std::int64_t> freed_entries = 0;
    std::int64_t const lanes = detail::lanes_of_row(rows, keep.lanes) * (rows.sequence != 0 ? 1 : keep.lanes.sequences);
    left* const gone = memory(exec, in, 0).gone;
    auto const list = [&](lane one, std::span<int const> units, auto const& take) {
      freed_entries += lanes * list_gone(in, edit, one, units, gone[keep.lanes.index(one)].entries, take);
    };
    exec.for_each(keep.lanes.size(), [&](int i, int worker) {
      lane const this_lane = keep.lanes.at(i);
      staying const blocks = find(exec, keep, in, i, worker);
      gone[i] = {blocks.all - blocks.blocks, blocks.count - blocks.entries()};
      permute(in, this_lane, blocks, columns);
      if (!alone) return;
      rewrite(exec, in, edit.list, this_lane, blocks);
      *in.lanes.count.row(this_lane) = blocks.entries();
      int const* const behind = in.where.list(this_lane) + blocks.blocks;
      if (asks && owned) list(this_lane, {behind, behind + gone[i].blocks}, [](int) { return true; });
    });
    if (!alone) write_shared(exec, keep, in, edit.list);
    if (asks && !owned) {
      detail::scratch_arena arena = memory(exec, in, 0).rest;
      detail::abandoned_units abandoned(in, keep.lanes, arena);
      abandoned.for_each_row(
          [&](lane one) {
            return detail::row_units{abandoned.pools().units_of(in, one), gone[keep.lanes.index(one)].blocks};
          },
          list);
    }
    if (entries != nullptr) *entries += freed_entries;
  }

 private:
  /// What leaves a lane.
  struct left {
    int blocks;
    int entries;
  };

  /// A worker's scratch. Other workers write `gone` of the first.
  struct work_space {
    int* block;
    int* dropped;
    unsigned char* stays;
    left* gone;
    detail::scratch_arena rest;
  };
  static work_space memory(host_executor& exec, cache const& in, int worker) {
    auto const bound = static_cast<std::size_t>(in.lanes.capacity);
    detail::scratch_arena arena(exec.scratch(worker));
    int* const block = arena.take<int>(bound + 1);
    int* const dropped = arena.take<int>(bound + 1);
    auto* const stays = arena.take<unsigned char>(bound);
    auto* const gone = arena.take<left>(static_cast<std::size_t>(in.lanes.size()));
    return {block, dropped, stays, gone, arena};
  }

  /// The blocks of a lane that stay, ascending: those with a kept entry or a draft.
  struct staying {
    int const* block;
    int blocks;
    int count;             ///< entries of the lane
    int unit;              ///< entries of a block
    int all;               ///< blocks of the lane
    unsigned char* stays;  ///< a mark for each block, which `rewrite` inverts
    int* dropped;          ///< memory for the other blocks

    [[nodiscard]] int begin(int i) const { return block[i] * unit; }
    [[nodiscard]] int size(int i) const { return std::min(unit, count - begin(i)); }
    [[nodiscard]] int entries() const { return blocks == 0 ? 0 : (blocks - 1) * unit + size(blocks - 1); }
    /// Blocks at the front that do not move.
    [[nodiscard]] int first() const {
      int i = 0;
      while (i < blocks && block[i] == i) ++i;
      return i;
    }
  };

  template <class T>
  static bool has_own_row(by_lane<T> const& of, lanes const& batch) {
    return detail::lanes_of_row(of, batch) == 1 && (of.sequence != 0 || batch.sequences == 1);
  }

  /// Tables that lanes share are rewritten once. Counts are written last, because every other step reads the old ones.
  static void write_shared(host_executor& exec, keep_set const& keep, cache const& in, by_lane<int> const& table) {
    exec.for_each(keep.lanes.size(), [&](int i, int worker) {
      lane const this_lane = keep.lanes.at(i);
      if (!detail::leads_row(detail::rows_of(in.where, table), keep.lanes, this_lane)) return;
      rewrite(exec, in, table, this_lane, find(exec, keep, in, i, worker));
    });
    exec.for_each(keep.lanes.size(), [&](int i, int worker) {
      lane const this_lane = keep.lanes.at(i);
      if (!detail::leads_row(in.lanes.count, keep.lanes, this_lane)) return;
      *in.lanes.count.row(this_lane) = find(exec, keep, in, i, worker).entries();
    });
  }

  static staying find(host_executor& exec, keep_set const& keep, cache const& in, int i, int worker) {
    lane const this_lane = keep.lanes.at(i);
    int const count = *in.lanes.count.row(this_lane);
    int const unit = in.where.unit_tokens;
    int const all = (count + unit - 1) / unit;
    auto const [block, dropped, stays, gone, rest] = memory(exec, in, worker);
    std::fill_n(stays, all, static_cast<unsigned char>(0));
    auto const kept = keep.listed(segment_of(keep.lanes, keep.decides, i));
    if (std::has_single_bit(static_cast<unsigned>(unit))) {  // mostly, and then no division is needed
      int const shift = std::countr_zero(static_cast<unsigned>(unit));
      for (int const e : kept) stays[e >> shift] = 1;
    } else {
      for (int const e : kept) stays[e / unit] = 1;
    }
    for (int e = in.lanes.committed(this_lane); e < count; ++e) stays[e / unit] = 1;
    int const blocks = detail::listing_of_isa[exec.simd_level()].marked(stays, all, block);
    return {block, blocks, count, unit, all, stays, dropped};
  }

  /// Moves the positions and columns of the blocks that stay to the front.
  static void permute(cache const& in, lane this_lane, staying const& blocks,
                      std::span<recorded_column const> columns) {
    constexpr std::size_t line = 64;  // of sixteen numbers
    int const first = blocks.first();
    auto const move = [&](std::byte* row, std::size_t width) {
      for (int i = first; i < blocks.blocks; ++i) {
        std::byte* const to = row + static_cast<std::size_t>(i * blocks.unit) * width;
        std::byte const* const from = row + static_cast<std::size_t>(blocks.begin(i)) * width;
        std::size_t const bytes = static_cast<std::size_t>(blocks.size(i)) * width;
        if (bytes == line) {
          std::memcpy(to, from, line);  // blocks are apart
        } else {
          std::memmove(to, from, bytes);
        }
      }
    };
    if (detail::leads_row(in.lanes.position, in.lanes, this_lane)) {
      move(reinterpret_cast<std::byte*>(in.lanes.position.row(this_lane)), sizeof(int));
    }
    detail::lower_known(columns, this_lane, std::min(first * blocks.unit, blocks.entries()));
    for (recorded_column const& one : columns) {
      if (one.about.extent != column_extent::lane_entry || one.about.rule != on_move::permute) continue;
      move(one.rows.row(this_lane), static_cast<std::size_t>(one.about.bytes));
    }
  }

  /// Lists the blocks that leave a row, and returns the entries of those that are freed.
  template <class Take>
  static std::int64_t list_gone(cache const& in, list_edit<detail::any_shared> const& edit, lane one,
                                std::span<int const> units, int entries, Take const& take) {
    detail::unit_appender freed(edit.freed, one), released(edit.released, one);
    std::int64_t freed_entries = 0;
    for (int const unit : units) {
      int const held = std::min(entries, in.where.unit_tokens);  // only the last block is not full
      entries -= held;
      bool const is_free = take(unit) && !edit.shared(unit);
      (is_free ? freed : released).add(unit);
      freed_entries += is_free ? held : 0;
    }
    return freed_entries;
  }

  /// Puts the blocks that stay before the others.
  static void rewrite(host_executor const& exec, cache const& in, by_lane<int> const& table, lane this_lane,
                      staying const& blocks) {
    int* const row = detail::writable_list(table, in.where, this_lane);
    for (int b = 0; b < blocks.all; ++b) blocks.stays[b] ^= 1;
    int* const dropped = blocks.dropped;
    int const gone = detail::listing_of_isa[exec.simd_level()].marked(blocks.stays, blocks.all, dropped);
    for (int i = 0; i < gone; ++i) dropped[i] = row[dropped[i]];
    for (int i = 0; i < blocks.blocks; ++i) row[i] = row[blocks.block[i]];  // which is at or behind i
    std::copy_n(dropped, gone, row + blocks.blocks);
  }
};

}  // namespace KVPOLICY_NAMESPACE
