// SPDX-License-Identifier: Apache-2.0
// Computes the attention masses of a piece of a segment's entries once the softmax statistics of all rows are known.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/attention/mass_stats.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The softmax statistics of rows: from `rows.lse` if it is given, else from scratch.
struct known_sums {
  bool given = false;  ///< true: use rows.lse
  float unit = 1;      ///< what that is multiplied by: log2(e) where exponentials are powers of two
  sums_storage from;

  KVPOLICY_HD row_sums operator()(used_rows const& used, query_row const& row) const {
    attention_task const& task = used.task;
    if (given) return {task.rows.lse.at(used.lane, used.lane.head * task.group + row.head, row.stored) * unit, 1.0f};
    int const slot = task.on_logits ? row.number : row.number * task.group + row.head;
    return from.whole_of(task.scores.lanes.index(used.lane))[slot];
  }
};

/// How the probabilities of an entry, over rows, heads of the group and lanes, are reduced to one mass.
struct mass_reduction {
  bool rows_maximum = false;
  bool mean_rows = false;
  int divide_by = 1;  ///< the divisor for a mean of the group
  bool lanes_maximum = false;
  int lanes_divide_by = 1;  ///< the divisor for a mean of lanes
  bool accumulate = false;  ///< add to the masses that are there, lane by lane

  /// Adds the mass of an entry in the segment's i-th lane to the score of the entry.
  KVPOLICY_HD void put(float total, used_rows const& used, int i, float& to) const {
    int const shares = (mean_rows && used.all > 0 ? used.all : 1) * divide_by;
    float const mass = shares > 1 ? total / static_cast<float>(shares) : total;
    if (used.task.candidates()) {
      to += to == running_sum::lowest() ? 0.0f : mass;
    } else {
      fold_into(to, mass, lanes_maximum && !accumulate, i == 0 && !accumulate);
    }
  }
};

/// What kernels of masses know. A block handles one piece of the entries of a segment, lane after lane.
struct mass_pieces {
  attention_task task;
  known_sums sums;
  mass_reduction how;
  device_error faults;
  int pieces;
  int entries;  ///< entries of a piece

  /// The piece of a block: its first entry, and lanes [first, first + together) of the segment.
  struct piece {
    int begin, first, together;
    float* out;  ///< the scores of the segment
  };
  [[nodiscard]] KVPOLICY_HD piece of(int block) const {
    score_view const& out = task.scores;
    int const segment = block / pieces;
    return {block % pieces * entries, first_lane(out.lanes, out.decides, segment), out.lanes.size() / out.segments(),
            out.row(segment)};
  }

  /// Divides the entries of a piece by the number of lanes, for a mean. Entries from `count` on are set to 0 with
  /// `candidates`, because tensor-parallel ranks add whole rows.
  template <class Block>
  KVPOLICY_HD void finish(Block& block, piece const& at, int count) const {
    block.sync();  // mass_reduction::put wrote the scores by other threads
    int const end = min_op{}(at.begin + entries, task.scores.lanes.capacity);
    for (int e = at.begin + block.thread(); e < end; e += block.threads()) {
      if (e < count && how.lanes_divide_by > 1) at.out[e] /= static_cast<float>(how.lanes_divide_by);
      if (e >= count && task.candidates()) at.out[e] = 0;
    }
  }
};

/// Reduces the probabilities that rows of a tile give to its entry k. take(i, reduced) gets what each series makes, of
/// which row i of the tile is the last.
template <class Take>
KVPOLICY_HD void reduce_probabilities(lane_tile const& of, bool rows_maximum, tile_part const& at, int k,
                                      Take const& take) {
  attention_task const& task = of.task;
  attention_storage const& tile = of.tile;
  of.reduce_series(
      at, k, task.rows_apart ? rows_maximum : task.group_maximum,
      [&](int i) { return task.on_logits ? tile.logit(i, k) * task.logit_weight : tile.probability(i, k); },
      [&](int i, float inner) { take(i, task.on_logits ? tile.probability(i, k, inner) : inner); });
}

/// Adds the masses of the i-th lane of a segment.
struct lane_masses {
  using entry_total = float;

  known_sums const& sums;
  mass_reduction const& how;
  int i;
  float* out;

  /// `total` starts at 0, and no probability is lower.
  KVPOLICY_HD void add(lane_tile const& of, tile_part const& at, int k, float& total) const {
    bool const maximum = of.task.rows_apart ? of.task.group_maximum : how.rows_maximum;
    reduce_probabilities(of, how.rows_maximum, at, k, [&](int, float mass) { fold_into(total, mass, maximum, false); });
  }
  KVPOLICY_HD void put(lane_tile const& of, int e, float total) const { how.put(total, of, i, out[e]); }
};

/// Pieces have a multiple of tile_entries.
template <class Product>
struct mass_kernel : mass_pieces {
  Product product;

  [[nodiscard]] std::size_t shared() const { return shared_of_reduction<lane_masses>() + product.bytes(); }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    if (faults.raised()) return;
    lanes const& batch = task.scores.lanes;
    piece const at = of(block.index());
    for (int i = 0; i < at.together; ++i) {
      lane_masses const masses{sums, how, i, at.out};
      reduce_piece(block, task, product, batch.at(at.first + i), at.begin, entries, masses, shared_arena(block));
    }
    finish(block, at, batch.committed(batch.at(at.first)));
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
