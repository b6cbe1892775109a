// SPDX-License-Identifier: Apache-2.0
// The arguments of attention kernels: which rows and entries of a lane take part, and one tile of each in shared
// memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/cuda/fold.hpp>
#include <kvpolicy/ops/cuda/moves/rows.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The entries and the most rows of a tile of logits. The logits of a row are neighbours; rows are `tile_pitch` apart.
inline constexpr int tile_entries = 128;
inline constexpr int tile_rows = 32;
inline constexpr int tile_pitch = tile_entries + 4;  // no bank conflicts between rows of a fragment

/// The arguments that are the same for all lanes. Kernels copy it, so it has values only.
struct attention_task {
  row_view from;
  query_view rows;
  score_view scores;  ///< the lanes; with `candidates` also the entries that take part
  sink_logits sinks{};
  key_domain domain = key_domain::all;
  int group = 1;               ///< query heads of a lane, its GQA group
  float scale = 1;             ///< the factor of q.k
  float soft_cap = 0;          ///< logits x become soft_cap tanh(x / soft_cap); 0: they stay
  last_rows_used used{};       ///< how many of the last rows take part
  bool only_last = false;      ///< of these only the very last is used, but the domain is that of all of them
  bool on_logits = false;      ///< the logits of the group are reduced before the softmax
  bool group_maximum = false;  ///< the group is reduced to its maximum
  float logit_weight = 1;      ///< what a logit of the group is multiplied by: with on_logits 1 / group for a mean
  bool rows_apart = true;      ///< true: rows of a head are neighbours; false: heads of a row are
  int first_row = 0;           ///< this launch takes rows [first_row, first_row + most_rows) of the used ones
  int most_rows = 0x7FFFFFFF;
  row_weight weight{};  ///< what probabilities of a row are multiplied by

  /// True if keys have scales.
  [[nodiscard]] KVPOLICY_HD bool scaled() const { return from.rows.scales.data != nullptr; }
  [[nodiscard]] KVPOLICY_HD bool sees_all() const { return rows.position.data == nullptr; }
  [[nodiscard]] KVPOLICY_HD bool candidates() const { return domain == key_domain::candidates; }
  [[nodiscard]] KVPOLICY_HD int position_of(lane this_lane, int row) const {
    return rows.position.row(this_lane)[rows.stored(this_lane, row)];
  }

  [[nodiscard]] KVPOLICY_HD bool has_sinks() const { return sinks.data != nullptr; }
  /// The sink logit of a slot of statistics (see storage_of_rows). Where a slot is a row of the whole group, the
  /// group's sinks are reduced as its logits are.
  [[nodiscard]] KVPOLICY_HD float sink(int lane_index, int slot) const {
    lane const one = scores.lanes.at(lane_index);
    if (!on_logits) return sinks.at(one.layer, one.head * group + slot % group);
    float all = 0;
    for (int h = 0; h < group; ++h) {
      float const sink = sinks.at(one.layer, one.head * group + h);
      fold_into(all, group_maximum ? sink : sink * logit_weight, group_maximum, h == 0);
    }
    return all;
  }
};

/// A position later than every valid one.
inline constexpr int no_position = 0x7FFFFFFF;

/// A query row of a launch, or none.
struct query_row {
  std::byte const* at = nullptr;
  int head = 0;    ///< in the group
  int number = 0;  ///< among the rows of its head in this launch
  int stored = 0;
  int last = -1;  ///< it sees entries at positions up to this one
};

/// Some rows of a lane, and the entries that they may attend to.
struct found_rows {
  int begin = 0;             ///< the first of these rows, as an index of the query view
  int count = 0;             ///< rows of each query head
  int all = 0;               ///< rows of a head that all launches together use
  int oldest = 0;            ///< the lowest position of these rows
  int domain = no_position;  ///< entries at positions below take part
  int entries = 0;           ///< committed entries of the lane
};

/// The rows of a lane that a launch uses.
struct used_rows : found_rows {
  attention_task const& task;
  kvpolicy::lane lane;

  /// The rows of all query heads.
  [[nodiscard]] KVPOLICY_HD int rows() const { return count * task.group; }
  [[nodiscard]] KVPOLICY_HD query_row row(int i) const {
    int const head = task.rows_apart ? i / count : i % task.group;
    int const number = task.rows_apart ? i % count : i / task.group;
    int const stored = task.rows.stored(lane, begin + number);
    int const last = task.sees_all() ? 0 : min_op{}(task.rows.position.row(lane)[stored], no_position - 1);
    return {task.rows.at(lane, lane.head * task.group + head, stored), head, number, stored, last};
  }
  /// The position of entry e of the lane; no_position if it takes no part.
  [[nodiscard]] KVPOLICY_HD int position_of_entry(int e) const {
    int const at = task.sees_all() ? 0 : task.scores.lanes.position.row(lane)[e];
    bool part = at < domain;
    if (part && task.candidates()) part = task.scores.rows.row(lane)[e] != same_bits<float>(0xFF800000u);
    return part ? at : no_position;
  }
};

/// How many of a lane's valid rows are at positions up to `last`. Positions ascend, and each step of the search splits
/// the range by 32. Collective of a warp.
template <class Block>
[[nodiscard]] KVPOLICY_HD int rows_until(Block& block, attention_task const& task, lane this_lane, int valid,
                                         int last) {
  int begin = 0;
  int end = valid;
  while (begin < end) {
    int const step = (end - begin + warp_size - 1) / warp_size;
    int const probe = begin + lane_id(block) * step + step - 1;
    int const passed = popcount(block.ballot(probe < end && task.position_of(this_lane, probe) <= last));
    int const stop = begin + passed * step + step - 1;
    begin += passed * step;
    end = passed < warp_size && stop < end ? stop : end;
  }
  return begin;
}

/// The rows of a lane that this launch uses. Every thread gets them. Collective.
template <class Block>
[[nodiscard]] KVPOLICY_HD used_rows used_rows_of(Block& block, attention_task const& task, lane this_lane) {
  used_rows made{{}, task, this_lane};
  made.entries = task.scores.lanes.committed(this_lane);
  if (task.rows.rows == 0) return made;
  int end = task.rows.valid(this_lane);
  if (!task.sees_all()) {
    int const newest = task.scores.lanes.newest(this_lane);
    end = made.entries > 0 ? rows_until(block, task, this_lane, end, newest) : 0;
  }
  int const last = task.used.of(made.entries);
  int begin = last > 0 && end > last ? end - last : 0;
  if (task.domain == key_domain::past && begin < end && !task.sees_all())
    made.domain = task.position_of(this_lane, begin);
  if (task.only_last && begin < end - 1) begin = end - 1;
  made.all = end - begin;
  int const left = made.all - task.first_row;
  made.begin = begin + task.first_row;
  made.count = left < 0 ? 0 : left < task.most_rows ? left : task.most_rows;
  if (!task.sees_all() && made.count > 0) made.oldest = task.position_of(this_lane, made.begin);
  return made;
}

/// The softmax statistics of a row. The probability of a logit is e^(logit - row_max) * scale, for entries at positions
/// below the row's `limit`. Where the caller gives the row's LSE, that is in row_max, and scale is 1.
struct row_sums {
  float row_max = 0;
  float scale = 1;
};
/// Stands for statistics that are not known yet.
struct no_sums {
  KVPOLICY_HD row_sums operator()(used_rows const&, query_row const&) const { return {}; }
};

/// A tile in shared memory.
struct alignas(16) attention_storage {
  float logits[tile_rows * tile_pitch];
  std::byte const* key[tile_entries];  ///< rows of keys; null after the last
  std::byte const* query[tile_rows];   ///< query rows; null after the last
  int position[tile_entries];          ///< no_position where an entry takes no part
  float key_scale[tile_entries];       ///< what elements of keys are multiplied by, if there are scales
  float inner[tile_entries];           ///< the running result of the inner reduction
  int last[tile_rows];                 ///< a row sees positions up to it
  float scale[tile_rows];              ///< what logits are multiplied by
  row_sums sums[tile_rows];            ///< softmax statistics

  [[nodiscard]] KVPOLICY_HD bool sees(int row, int entry) const { return position[entry] <= last[row]; }
  [[nodiscard]] KVPOLICY_HD float logit(int row, int entry) const {
    return logits[row * tile_pitch + entry] * scale[row];
  }
  /// The probability that a row gives to an entry.
  [[nodiscard]] KVPOLICY_HD float probability(int row, int entry, float logit) const {
    return sees(row, entry) ? ::expf(logit - sums[row].row_max) * sums[row].scale : 0;
  }
  [[nodiscard]] KVPOLICY_HD float probability(int row, int entry) const {
    return probability(row, entry, logit(row, entry));
  }

  /// Replaces the unscaled logits of `count` rows by the capped ones, whose scale is 1, if there is a cap. Collective;
  /// with a cap it ends with a barrier.
  template <class Block>
  KVPOLICY_HD void apply_cap(Block& block, attention_task const& task, int count) {
    if (!(task.soft_cap > 0)) return;
    for (int i = block.thread(); i < count * tile_entries; i += block.threads()) {
      float& logit = logits[i / tile_entries * tile_pitch + i % tile_entries];
      logit = task.soft_cap * ::tanhf(logit * scale[i / tile_entries] / task.soft_cap);
    }
    block.sync();
    for (int i = block.thread(); i < count; i += block.threads()) scale[i] = 1;
    block.sync();
  }

  /// Fills the tile with entries [begin, end) of a lane, at most tile_entries of them.
  template <class Block>
  KVPOLICY_HD void take_entries(Block& block, used_rows const& used, int begin, int end) {
    for (int i = block.thread(); i < tile_entries; i += block.threads()) {
      int const e = begin + i;
      bool const there = e < end;
      key[i] = there ? used.task.from.row(used.lane, e) : nullptr;
      if (used.task.scaled()) key_scale[i] = there ? used.task.from.scale(used.lane, e) : 1.0f;
      position[i] = there ? used.position_of_entry(e) : no_position;
    }
  }

  /// Fills the tile with rows [base, base + count) of a launch. Their statistics come from `sums_of`.
  template <class Block, class Sums>
  KVPOLICY_HD void take_rows(Block& block, used_rows const& used, int base, int count, Sums const& sums_of) {
    attention_task const& task = used.task;
    for (int i = block.thread(); i < tile_rows; i += block.threads()) {
      query_row const one = i < count ? used.row(base + i) : query_row{};
      query[i] = one.at;
      last[i] = one.last;
      scale[i] = task.scale;
      if (i >= count) continue;
      sums[i] = sums_of(used, one);
      if (!task.weight.is_one()) sums[i].scale *= task.weight(task.first_row + one.number, used.all, used.entries);
    }
  }
};

/// Which part of a lane a tile is.
struct tile_part {
  int first;            ///< the first entry of the tile
  int begin, end;       ///< the entries that are reduced in it
  int base{}, count{};  ///< rows [base, base + count)
};

/// A tile, and the rows of the lane that it is a part of.
struct lane_tile : used_rows {
  attention_storage& tile;

  /// Reduces the rows of entry k of the tile in their order. The reduction of neighbouring rows goes to `inner`; when
  /// it is complete, take(i, reduced) gets it, where row i of the tile is the last of its series.
  template <class ValueOf, class Take>
  KVPOLICY_HD void reduce_series(tile_part const& at, int k, bool maximum, ValueOf const& value_of,
                                 Take const& take) const {
    int const series = task.rows_apart ? count : task.group;
    int number = at.base % series;
    for (int i = 0; i < at.count; ++i) {
      fold_into(tile.inner[k], value_of(i), maximum, number == 0);
      if (++number < series) continue;
      take(i, tile.inner[k]);
      number = 0;
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
