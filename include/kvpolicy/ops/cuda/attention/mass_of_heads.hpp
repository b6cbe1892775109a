// SPDX-License-Identifier: Apache-2.0
// Computes attention masses where all query heads of the lanes of a segment are reduced before the rows.
#pragma once

#include <kvpolicy/ops/cuda/attention/mass_rows.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// A block handles tile after tile of entries, a few rows of all lanes at a time; the same thread always has the same
/// entries. Pieces have a multiple of tile_entries. The heads of a row are neighbours in `task`, and `how` adds to the
/// masses of a launch before if it accumulates.
template <class Product>
struct heads_kernel : mass_pieces {
  static constexpr int most_rows = 8;  ///< of which the heads are reduced at a time

  Product product;

  [[nodiscard]] std::size_t shared() const { return sizeof(storage) + product.bytes(); }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    if (faults.raised()) return;
    lanes const& batch = task.scores.lanes;
    piece const at = of(block.index());
    shared_arena arena(block);
    storage& tile = *arena.take<storage>(1);
    used_rows const used = used_rows_of(block, task, batch.at(at.first));
    int const end = min_op{}(at.begin + entries, used.entries);
    for (int e = at.begin; e < end; e += tile_entries) {
      for (int k = block.thread(); k < tile_entries; k += block.threads()) tile.total[k] = 0;
      for (int row = 0; row < used.count; row += rows_at_once()) {
        int const rows = min_op{}(used.count - row, rows_at_once());
        for (int i = 0; i < at.together; ++i)
          add_lane(block, arena, tile, batch.at(at.first + i), {e, end, row, rows, used.all}, i);
        for (int k = block.thread(); k < tile_entries; k += block.threads()) {
          for (int r = 0; r < rows; ++r)
            fold_into(tile.total[k], tile.heads[r * tile_entries + k], how.rows_maximum, false);
        }
      }
      for (int k = block.thread(); k < tile_entries && e + k < end; k += block.threads())
        put(tile.total[k], used, at.together, at.out[e + k]);
    }
  }

 private:
  struct storage : attention_storage {
    float heads[most_rows * tile_entries];  ///< rows of which some lanes are reduced
    float total[tile_entries];              ///< the rows before
  };
  struct part {
    int begin, end;  ///< entries
    int row, rows;
    int all;  ///< the rows of the segment's first lane
  };

  [[nodiscard]] KVPOLICY_HD int rows_at_once() const {
    int const fit = tile_rows / task.group;
    return fit < 1 ? 1 : fit < most_rows ? fit : most_rows;
  }

  /// Reduces the heads of a lane, the i-th of its segment, with those of the lanes before.
  template <class Block>
  KVPOLICY_HD void add_lane(Block& block, shared_arena const& arena, storage& tile, lane one, part const& of,
                            int i) const {
    lane_product<Product> const rows{{used_rows_of(block, task, one), tile}, product, arena};
    if (block.thread() == 0 && rows.all != of.all) {
      report_fault(block, faults, fault::mass_rows, task.scores.lanes.index(one), rows.all);
    }
    block.sync();
    product.prepare(block, rows, arena);
    tile.take_entries(block, rows, of.begin, of.end);
    int const last = (of.row + of.rows) * task.group;
    rows.each_tile(block, of.row * task.group, last, sums, [&](int base, int count) {
      for (int e = block.thread(); e < tile_entries; e += block.threads()) {
        for (int k = 0; k < count; ++k) {
          int const row = (base + k) / task.group - of.row;
          bool const is_first = i == 0 && (base + k) % task.group == 0;
          fold_into(tile.heads[row * tile_entries + e], tile.probability(k, e), task.group_maximum, is_first);
        }
      }
    });
  }

  /// Writes the mass of an entry, or folds it into that of the rows of a launch before.
  KVPOLICY_HD void put(float total, used_rows const& used, int lanes, float& to) const {
    bool const mean_of_heads = how.divide_by > 1 || how.lanes_divide_by > 1;
    int const shares = (mean_of_heads ? task.group * lanes : 1) * (how.mean_rows && used.all > 0 ? used.all : 1);
    float const mass = shares > 1 ? total / static_cast<float>(shares) : total;
    fold_into(to, mass, how.rows_maximum, !how.accumulate);
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
