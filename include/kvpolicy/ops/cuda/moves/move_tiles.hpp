// SPDX-License-Identifier: Apache-2.0
// Moves rows to the front of their lane, in place, one tile of a block at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/ops/cuda/moves/columns.hpp>
#include <kvpolicy/ops/cuda/moves/move_lists.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// So many bytes, aligned to their number, which are loaded and stored at once. Their type does not matter.
template <int Bytes>
struct [[gnu::may_alias]] alignas(Bytes) byte_vector {
  std::uint32_t part[static_cast<std::size_t>(Bytes) / 4];
};
template <>
struct [[gnu::may_alias]] alignas(2) byte_vector<2> {
  std::uint16_t part;
};
template <>
struct [[gnu::may_alias]] alignas(1) byte_vector<1> {
  std::uint8_t part;
};

/// Data of which each entry has one row: K, V, its position or a recorded column. A row is `columns` pieces of `width`
/// bytes, `step` bytes apart.
struct moved_rows {
  plane rows{};
  bool by_ordinal = false;     ///< rows are in the order of entries, not where the cache's locator places them
  int const* slots = nullptr;  ///< of rows by ordinal: the row of each sequence; null: sequence s has row s
  int width = 1;
  int columns = 0;
  std::int64_t step = 1;
  int slices = 1;            ///< blocks that divide a row's columns among them
  bool across_rows = false;  ///< transposed: neighbours in memory are entries, not columns

  /// True if this lane moves the row: of lanes that share one, the first does.
  [[nodiscard]] KVPOLICY_HD bool led_by(lanes const& batch, lane one) const {
    return !by_ordinal ||
           leads_row(by_lane<std::byte>{rows.base, rows.unit_stride, rows.layer_stride, rows.head_stride}, batch, one);
  }
  [[nodiscard]] KVPOLICY_HD std::byte* row(locator const& where, lane one, int ordinal) const {
    place const at = by_ordinal ? place{slot_of(slots, one.sequence), ordinal} : where.at(one, ordinal);
    return rows.row(one.layer, at, one.head);
  }
};
using few_moved = a_few<moved_rows>;

/// How a block's threads are arranged over columns [first, end) of rows: `wide` threads side by side, which have
/// `of_thread` columns each, and `tall` rows at once.
struct thread_grid {
  int first, end;
  int wide, tall;
  int row, column;  ///< the place of this thread

  template <class Block>
  KVPOLICY_HD thread_grid(Block& block, moved_rows const& what, int slice, int of_thread = 1)
      : first(what.columns * slice / what.slices), end(what.columns * (slice + 1) / what.slices) {
    int const most = what.across_rows ? block.threads() / warp_size : block.threads();
    int const wanted = (end - first + of_thread - 1) / of_thread;
    wide = wanted < most ? wanted : most;
    if (wide < 1) wide = 1;
    tall = block.threads() / wide;
    row = what.across_rows ? block.thread() % tall : block.thread() / wide;
    column = what.across_rows ? block.thread() / tall : block.thread() % wide;
  }
};

/// Says whether a block may write what it has loaded. All threads of the block ask it.
struct always_permitted {
  /// Whether rows may be read before it is asked.
  [[nodiscard]] KVPOLICY_HD bool may_read() const { return true; }
  template <class Block>
  [[nodiscard]] KVPOLICY_HD bool permits(Block&) const {
    return true;
  }
};

/// Moves columns of entries [begin, moves.count()) of a lane, in place. A thread has up to `at_once` pieces of rows in
/// registers at a time.
///
/// No source is overwritten before it is read. A tile of new entries [i, j) reads all its sources before a barrier and
/// writes rows i to j - 1 after it. Later tiles read rows from source(j) >= j on, which these writes do not touch, and
/// earlier tiles have read their sources before an earlier barrier. Blocks do not interfere, since they have different
/// columns or planes.
template <class Moves, class Permission = always_permitted>
struct tile_mover {
  static constexpr int at_once = 8;
  moved_rows const& what;
  locator const& where;
  kvpolicy::lane lane;
  Moves const& moves;
  int begin;
  int slice;
  Permission permission{};

  /// Of wide rows a thread has four pieces of a row, so that it looks for the row's place once for all of them.
  template <int Width, class Block>
  KVPOLICY_HD void run(Block& block) const {
    constexpr int pieces = 4;
    if constexpr (Width == 16) {
      if (what.columns / what.slices >= pieces) return move<Width, at_once / pieces, pieces>(block);
    }
    move<Width, at_once / 2, 1>(block);
  }

 private:
  template <int Width, int Rows, int Columns, class Block>
  KVPOLICY_HD void move(Block& block) const {
    thread_grid const mine(block, what, slice, Columns);
    for (int c = mine.first; c < mine.end; c += mine.wide * Columns) {
      bool const moves_some = mine.row < mine.tall && mine.column < mine.wide && c + mine.column < mine.end;
      int const end = moves_some ? moves.count() : 0;
      for (int i = begin; i < moves.count(); i += mine.tall * Rows) {
        if (!move_tile<Width, Rows, Columns>(block, mine, i + mine.row, end, c + mine.column)) return;
      }
    }
  }

  /// In place of entries from `end` on, and of columns from the grid's end on, the last ones are loaded: loads under a
  /// condition would wait for one another. False if nothing may be written.
  template <int Width, int Rows, int Columns, class Block>
  [[nodiscard]] KVPOLICY_HD bool move_tile(Block& block, thread_grid const& mine, int first, int end,
                                           int column) const {
    using bytes = byte_vector<Width>;
    bytes staged[static_cast<std::size_t>(Rows)][static_cast<std::size_t>(Columns)];
    std::int64_t offset[static_cast<std::size_t>(Columns)];
    for (int k = 0; k < Columns; ++k) offset[k] = min_op{}(column + k * mine.wide, mine.end - 1) * what.step;
    if (first < end && permission.may_read()) {
      std::byte const* from[static_cast<std::size_t>(Rows)];
      for (int r = 0; r < Rows; ++r) {
        from[r] = what.row(where, lane, moves.source(min_op{}(first + r * mine.tall, end - 1)));
      }
      for (int r = 0; r < Rows; ++r) {
        for (int k = 0; k < Columns; ++k) staged[r][k] = *reinterpret_cast<bytes const*>(from[r] + offset[k]);
      }
    }
    if (!permission.permits(block)) return false;
    block.sync();
    for (int r = 0; r < Rows; ++r) {
      int const e = first + r * mine.tall;
      if (e >= end) continue;
      std::byte* const to = what.row(where, lane, e);
      for (int k = 0; k < Columns; ++k) {
        if (column + k * mine.wide < mine.end) *reinterpret_cast<bytes*>(to + offset[k]) = staged[r][k];
      }
    }
    return true;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
