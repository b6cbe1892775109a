// SPDX-License-Identifier: Apache-2.0
// Computes the attention masses of a piece of a segment's entries once the softmax statistics of all rows are known.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/attention/mass_stats.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The softmax statistics of rows: from `rows.lse` if it is given, else from scratch.
struct known_sums {
  bool given = false;  ///< true: use rows.lse
  sums_storage from;

  KVPOLICY_HD row_sums operator()(attention_task const& task, lane this_lane, int head, int row, int stored) const {
    if (given) return {task.rows.lse.at(this_lane, this_lane.head * task.group + head, stored), 1.0f};
    int const slot = task.on_logits ? row : row * task.group + head;
    return from.whole_of(task.scores.lanes.index(this_lane))[slot];
  }
};

/// How the probabilities of an entry, over rows, heads of the group and lanes, are reduced to one mass.
struct mass_reduction {
  bool rows_maximum = false;
  bool group_maximum = false;
  float logit_weight = 1;  ///< the weight of each logit, where logits are reduced before the softmax
  bool mean_rows = false;
  int divide_by = 1;  ///< the divisor for a mean of the group
  bool lanes_maximum = false;
  int lanes_divide_by = 1;  ///< the divisor for a mean of lanes
  bool accumulate = false;  ///< add to the masses that are there, lane by lane

  /// Adds the mass of an entry in the segment's i-th lane to the score of the entry.
  KVPOLICY_HD void put(float total, attention_task const& task, used_rows const& used, int i, float& to) const {
    int const shares = (mean_rows && used.all > 0 ? used.all : 1) * divide_by;
    float const mass = shares > 1 ? total / static_cast<float>(shares) : total;
    if (task.candidates()) {
      to += to == running_sum::lowest() ? 0.0f : mass;
    } else {
      fold_into(to, mass, lanes_maximum && !accumulate, i == 0 && !accumulate);
    }
  }

  /// Divides entries [begin, end) by the number of lanes, for a mean. Entries from `count` on are set to 0 with
  /// `candidates`, because tensor-parallel ranks add whole rows.
  template <class Block>
  KVPOLICY_HD void finish(Block& block, attention_task const& task, float* out, int begin, int end, int count) const {
    block.sync();  // `put` wrote the scores by other threads
    for (int e = begin + block.thread(); e < end && e < task.scores.lanes.capacity; e += block.threads()) {
      if (e < count && lanes_divide_by > 1) out[e] /= static_cast<float>(lanes_divide_by);
      if (e >= count && task.candidates()) out[e] = 0;
    }
  }
};

/// The probability that row `row` of a tile gives to its entry e.
[[nodiscard]] KVPOLICY_HD inline float probability(attention_storage const& temp_storage, int row, int e, float logit) {
  if (!temp_storage.sees(row, e)) return 0;
  return ::expf(logit - temp_storage.sums[row].row_max) * temp_storage.sums[row].scale;
}

/// Reduces the rows of a tile in their order, one thread for each entry. The reduction over neighbouring rows goes to
/// `inner`; when it is complete, take(e, reduced, i) gets it, where row i of the tile is the last of its series.
template <class Block, class Take>
KVPOLICY_HD void reduce_rows(Block& block, attention_task const& task, mass_reduction const& how,
                             attention_storage const& temp_storage, used_rows const& used, int base, int count,
                             Take const& take) {
  int const series = task.rows_apart ? used.count : task.group;
  bool const inner_maximum = task.rows_apart ? how.rows_maximum : how.group_maximum;
  for (int e = block.thread(); e < tile_entries; e += block.threads()) {
    int at = base % series;
    for (int i = 0; i < count; ++i) {
      float const logit = temp_storage.logits[i * tile_pitch + e] * temp_storage.scale[i];
      float const value = task.on_logits ? logit * how.logit_weight : probability(temp_storage, i, e, logit);
      fold_into(temp_storage.inner[e], value, inner_maximum, at == 0);
      if (++at < series) continue;
      take(e, task.on_logits ? probability(temp_storage, i, e, temp_storage.inner[e]) : temp_storage.inner[e], i);
      at = 0;
    }
  }
}

/// One block for each piece of a segment. It handles lane after lane and tile after tile; the same thread always has
/// the same entries.
template <class Product>
struct mass_kernel {
  attention_task task;
  Product product;
  known_sums sums;
  mass_reduction how;
  device_error faults;
  int pieces;
  int entries;  ///< entries of a piece, a multiple of tile_entries

  [[nodiscard]] static std::size_t shared(Product const& product) {
    return attention_storage::bytes() + shared_arena::bytes_of_piece<float>(tile_entries) + product.bytes();
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    if (faults.raised()) return;
    score_view const& out = task.scores;
    int const segment = block.index() / pieces;
    int const begin = block.index() % pieces * entries;
    int const together = out.lanes.size() / out.segments();
    int const first = first_lane(out.lanes, out.decides, segment);
    for (int i = 0; i < together; ++i) add_lane(block, out.lanes.at(first + i), i, begin, out.row(segment));
    how.finish(block, task, out.row(segment), begin, begin + entries, out.lanes.committed(out.lanes.at(first)));
  }

 private:
  /// The other reduction. `total` starts at 0, and no probability is lower.
  struct add_to {
    float* total;
    bool maximum;
    KVPOLICY_HD void operator()(int e, float value, int) const { fold_into(total[e], value, maximum, false); }
  };
  [[nodiscard]] KVPOLICY_HD bool outer_maximum() const {
    return task.rows_apart ? how.group_maximum : how.rows_maximum;
  }

  /// Adds the masses of the i-th lane of the segment.
  template <class Block>
  KVPOLICY_HD void add_lane(Block& block, lane this_lane, int i, int begin, float* out) const {
    shared_arena arena(block);
    attention_storage const temp_storage(arena, task.scaled());
    auto* const total = arena.take<float>(tile_entries);
    used_rows const used = used_rows_of(block, task, this_lane);
    int const all = used.count * task.group;
    int const end = begin + entries < used.entries ? begin + entries : used.entries;
    block.sync();
    if (begin < end && all > 0) product.prepare(block, task, used, this_lane, arena, all);
    for (int e = begin; e < end; e += tile_entries) {
      block.sync();
      temp_storage.take_entries(block, task, used, this_lane, e, end);
      for (int k = block.thread(); k < tile_entries; k += block.threads()) total[k] = 0;
      for (int base = 0; base < all; base += product.tile()) {
        int const count = all - base < product.tile() ? all - base : product.tile();
        block.sync();
        temp_storage.take_rows(block, task, used, this_lane, base, count, sums);
        product.run(block, task, used, this_lane, temp_storage, arena, base, count);
        block.sync();
        temp_storage.apply_cap(block, task, count);
        reduce_rows(block, task, how, temp_storage, used, base, count, add_to{total, outer_maximum()});
      }
      for (int k = block.thread(); k < tile_entries && e + k < end; k += block.threads())
        how.put(total[k], task, used, i, out[e + k]);
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
