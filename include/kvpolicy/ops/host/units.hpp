// Host implementations of the verbs that free units of a lane.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <kvpolicy/ops/host/hole_kernels.hpp>
#include <kvpolicy/ops/host/lists.hpp>
#include <kvpolicy/ops/units.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::fill_holes_t, host> {
  static constexpr bool provided = true;

  static std::size_t scratch(cache const& in) {
    auto const bound = static_cast<std::size_t>(in.lanes.bound);
    return detail::scratch_of<std::uint64_t>(detail::unit_marks::words_for(in.where.units)) +
           2 * detail::scratch_of<int>(bound + 1) + detail::scratch_of<unsigned char>(bound);
  }

  static void run(host_executor& exec, keep_set const& keep, cache const& in, by_lane<int> const& list) {
    by_lane<int> const rows = detail::rows_of(in.where, list);
    exec.for_each(keep.lanes.size(), [&](int i, int worker) {
      if (!detail::owns_row(rows, keep.lanes, keep.lanes.at(i))) return;
      fill(exec.simd_level(), exec.scratch(worker), keep, in, list, rows, i);
    });
  }

 private:
  /// Compacts one list, and the rows of all lanes that share it.
  static void fill(isa simd_level, std::span<std::byte> memory, keep_set const& keep, cache const& in,
                   by_lane<int> const& list, by_lane<int> const& rows, int i) {
    lane const this_lane = keep.lanes.at(i);
    auto const kept = keep.listed(segment_of(keep.lanes, keep.decides, i));
    int const count = *in.lanes.count.row(this_lane);
    int const committed = in.lanes.committed(this_lane);
    int const stays = static_cast<int>(kept.size()) + count - committed;
    if (stays == count) return;
    int* const slot = detail::list_row(list, in.where, this_lane);
    detail::scratch_arena arena(memory);
    auto* const words = arena.take<std::uint64_t>(detail::unit_marks::words_for(in.where.units));
    auto const bound = static_cast<std::size_t>(in.lanes.bound);
    int* const vacated = arena.take<int>(bound + 1);
    int* const holes = arena.take<int>(bound + 1);
    auto* const dropped = arena.take<unsigned char>(bound);
    detail::hole_kernels const& with = detail::holes_for(simd_level);
    int const lowest = detail::lowest_of_highest(with, slot, count, count - stays, in.where.units);
    with.list_from(slot, count, lowest, vacated);
    ascend(words, vacated, count - stays);
    std::fill_n(dropped, committed, static_cast<unsigned char>(1));
    std::fill(dropped + committed, dropped + count, static_cast<unsigned char>(0));
    detail::set_marks(kept, 0, 0, dropped);
    int const many = list_holes(simd_level, dropped, slot, committed, lowest, holes);
    // The number of rows that move equals the number of holes, which is at most half of the lane's rows.
    int* const moved = holes + many;
    with.fill(slot, dropped, count, lowest, holes, moved);
    for_each_sharing(keep.lanes, rows, this_lane, [&](lane one) { move(simd_level, in, one, {moved, holes, many}); });
    std::copy_n(vacated, count - stays, slot + stays);
  }

  /// Sorts distinct slots by a mark for each unit between the lowest and the highest of them.
  static void ascend(std::uint64_t* words, int* slots, int count) {
    auto const [lowest, highest] = std::minmax_element(slots, slots + count);
    int const begin = *lowest / 64, end = *highest / 64 + 1;
    std::fill(words + begin, words + end, 0);
    detail::unit_marks marks(words);
    for (int i = 0; i < count; ++i) marks.set(slots[i]);
    for (int w = begin; w < end; ++w) {
      for (std::uint64_t word = words[w]; word != 0; word &= word - 1) *slots++ = w * 64 + std::countr_zero(word);
    }
  }

  /// Lists the slots of dropped entries that the lane continues to use, and returns their number.
  static int list_holes(isa simd_level, unsigned char const* dropped, int const* slot, int committed, int lowest,
                        int* holes) {
    int const gone = detail::list_marked_for(simd_level)(dropped, committed, holes);
    int to = 0;
    for (int i = 0; i < gone; ++i) {
      int const hole = slot[holes[i]];
      holes[to] = hole;
      to += hole < lowest ? 1 : 0;
    }
    return to;
  }

  template <class Visit>
  static void for_each_sharing(lanes const& all, by_lane<int> const& rows, lane owner, Visit const& visit) {
    int const layer_end = rows.layer == 0 ? all.layer_end : owner.layer + 1;
    int const head_end = rows.head == 0 ? all.heads : owner.head + 1;
    for (int layer = owner.layer; layer < layer_end; ++layer) {
      for (int head = owner.head; head < head_end; ++head) visit(lane{owner.sequence, layer, head});
    }
  }

  /// Moves of rows of a lane between slots.
  struct slot_moves {
    int const* from;
    int const* to;
    int count;
  };

  static void move(isa simd_level, cache const& in, lane this_lane, slot_moves const& moves) {
    auto const one = [&](plane const& rows) {
      auto const row = [&](int slot) { return rows.row(this_lane.layer, {slot, 0}, this_lane.head); };
      constexpr int line = 64, few = 256;  // of many rows move_rows writes past the cache
      int const bytes = rows.contiguous() && moves.count <= few ? rows.dims * bytes_of(rows.element) : 0;
      for (int i = 0; i < moves.count && bytes > 0; ++i) {  // holes are scattered, so nothing else fetches their lines
        for (int at = 0; at < bytes; at += line) __builtin_prefetch(row(moves.to[i]) + at, 1, 2);
      }
      detail::move_rows(
          simd_level, rows, {0, moves.count}, [&](int i) { return row(moves.from[i]); },
          [&](int i) { return row(moves.to[i]); });
    };
    detail::for_each_moved_plane(in, one);
  }
};

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
