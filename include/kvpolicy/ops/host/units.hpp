// Host implementation of drop_units. fill_holes is in units_holes.hpp.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <kvpolicy/ops/host/lists.hpp>
#include <kvpolicy/ops/host/units_holes.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/units.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::drop_units_t, host> {
  static constexpr bool provided = true;

  static std::size_t scratch(shape const&, int bound) {
    auto const most = static_cast<std::size_t>(bound);  // a lane has at least as many entries as blocks
    return 2 * detail::scratch_of<int>(most + 1) + detail::scratch_of<unsigned char>(most);
  }

  static void run(host_executor& exec, keep_set const& keep, cache const& in, by_lane<int> const& table,
                  std::span<recorded_column const> columns, unit_list const& freed, std::int64_t* entries) {
    std::atomic<std::int64_t> dropped_entries = 0;
    // Where no two lanes share a row of the table or a count, nobody else reads what a lane writes.
    bool const alone =
        has_own_row(detail::rows_of(in.where, table), keep.lanes) && has_own_row(in.lanes.count, keep.lanes);
    exec.for_each(keep.lanes.size(), [&](int i, int worker) {
      lane const this_lane = keep.lanes.at(i);
      staying const blocks = find(exec, keep, in, i, worker);
      dropped_entries += blocks.count - blocks.entries();
      permute(in, this_lane, blocks, columns);
      if (!alone) return;
      rewrite(exec.simd_level(), in, table, freed, this_lane, blocks);
      *in.lanes.count.row(this_lane) = blocks.entries();
    });
    if (entries != nullptr) *entries += dropped_entries;
    if (!alone) write_shared(exec, keep, in, table, freed);
  }

 private:
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
  static void write_shared(host_executor& exec, keep_set const& keep, cache const& in, by_lane<int> const& table,
                           unit_list const& freed) {
    exec.for_each(keep.lanes.size(), [&](int i, int worker) {
      lane const this_lane = keep.lanes.at(i);
      if (!detail::owns_row(detail::rows_of(in.where, table), keep.lanes, this_lane)) return;
      rewrite(exec.simd_level(), in, table, freed, this_lane, find(exec, keep, in, i, worker));
    });
    exec.for_each(keep.lanes.size(), [&](int i, int worker) {
      lane const this_lane = keep.lanes.at(i);
      if (!detail::owns_row(in.lanes.count, keep.lanes, this_lane)) return;
      *in.lanes.count.row(this_lane) = find(exec, keep, in, i, worker).entries();
    });
  }

  static staying find(host_executor& exec, keep_set const& keep, cache const& in, int i, int worker) {
    lane const this_lane = keep.lanes.at(i);
    int const count = *in.lanes.count.row(this_lane);
    int const unit = in.where.unit_tokens;
    int const all = (count + unit - 1) / unit;
    auto const bound = static_cast<std::size_t>(in.lanes.bound);
    detail::scratch_arena arena(exec.scratch(worker));
    int* const block = arena.take<int>(bound + 1);
    int* const dropped = arena.take<int>(bound + 1);
    auto* const stays = arena.take<unsigned char>(bound);
    std::fill_n(stays, all, static_cast<unsigned char>(0));
    auto const kept = keep.listed(segment_of(keep.lanes, keep.decides, i));
    if (std::has_single_bit(static_cast<unsigned>(unit))) {  // mostly, and then no division is needed
      int const shift = std::countr_zero(static_cast<unsigned>(unit));
      for (int const e : kept) stays[e >> shift] = 1;
    } else {
      for (int const e : kept) stays[e / unit] = 1;
    }
    for (int e = in.lanes.committed(this_lane); e < count; ++e) stays[e / unit] = 1;
    int const blocks = detail::list_marked_for(exec.simd_level())(stays, all, block);
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
    if (detail::owns_row(in.lanes.position, in.lanes, this_lane)) {
      move(reinterpret_cast<std::byte*>(in.lanes.position.row(this_lane)), sizeof(int));
    }
    detail::lower_known(columns, this_lane, std::min(first * blocks.unit, blocks.entries()));
    for (recorded_column const& one : columns) {
      if (one.about.one != per::lane_entry || one.about.rule != on_move::permute) continue;
      move(one.rows.row(this_lane), static_cast<std::size_t>(one.about.bytes));
    }
  }

  /// Puts the blocks that stay before the others, and lists these in `freed`.
  static void rewrite(isa simd_level, cache const& in, by_lane<int> const& table, unit_list const& freed,
                      lane this_lane, staying const& blocks) {
    int* const row = detail::list_row(table, in.where, this_lane);
    for (int b = 0; b < blocks.all; ++b) blocks.stays[b] ^= 1;
    int* const dropped = blocks.dropped;
    int const gone = detail::list_marked_for(simd_level)(blocks.stays, blocks.all, dropped);
    for (int i = 0; i < gone; ++i) dropped[i] = row[dropped[i]];
    for (int i = 0; i < blocks.blocks; ++i) row[i] = row[blocks.block[i]];  // which is at or behind i
    if (freed.count.data != nullptr) *freed.count.row(this_lane) = gone;
    if (freed.unit.data != nullptr) std::copy_n(dropped, gone, freed.unit.row(this_lane));
    std::copy_n(dropped, gone, row + blocks.blocks);
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
