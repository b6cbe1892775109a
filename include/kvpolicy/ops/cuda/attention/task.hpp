// SPDX-License-Identifier: Apache-2.0
// The arguments of attention kernels: which rows and entries of a lane take part, and one tile of each in shared
// memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <kvpolicy/ops/attention_mass.hpp>
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
  key_domain domain = key_domain::all;
  int group = 1;           ///< query heads of a lane, its GQA group
  float scale = 1;         ///< the factor of q.k
  float soft_cap = 0;      ///< logits x become soft_cap tanh(x / soft_cap); 0: they stay
  last_rows_used used{};   ///< how many of the last rows take part
  bool only_last = false;  ///< of these only the very last is used, but the domain is that of all of them
  bool on_logits = false;  ///< the logits of the group are reduced before the softmax
  bool rows_apart = true;  ///< true: rows of a head are neighbours; false: heads of a row are
  int first_row = 0;       ///< this launch takes rows [first_row, first_row + most_rows) of the used ones
  int most_rows = 1;
  row_weight weight{};  ///< what probabilities of a row are multiplied by

  /// True if keys have scales.
  [[nodiscard]] KVPOLICY_HD bool scaled() const { return from.rows.scales.data != nullptr; }
  [[nodiscard]] KVPOLICY_HD bool sees_all() const { return rows.position.data == nullptr; }
  [[nodiscard]] KVPOLICY_HD bool candidates() const { return domain == key_domain::candidates; }
  [[nodiscard]] KVPOLICY_HD int position_of(lane this_lane, int row) const {
    return rows.position.row(this_lane)[rows.stored(this_lane, row)];
  }
};

/// A position later than every valid one.
inline constexpr std::int64_t no_position = std::int64_t{1} << 40;

/// The rows of a lane that a launch uses, and the entries that they may attend to.
struct used_rows {
  int begin = 0;                      ///< the first of these rows, as an index of the query view
  int count = 0;                      ///< rows of each query head
  int all = 0;                        ///< rows of a head that all launches together use
  std::int64_t domain = no_position;  ///< entries at positions below take part
  int entries = 0;                    ///< committed entries of the lane

  /// The head in the group, and the row of that head, of row i of this launch.
  [[nodiscard]] KVPOLICY_HD int head_of(attention_task const& task, int i) const {
    return task.rows_apart ? i / count : i % task.group;
  }
  [[nodiscard]] KVPOLICY_HD int row_of(attention_task const& task, int i) const {
    return task.rows_apart ? i % count : i / task.group;
  }
  [[nodiscard]] KVPOLICY_HD std::byte const* query_at(attention_task const& task, lane this_lane, int i) const {
    return task.rows.at(this_lane, this_lane.head * task.group + head_of(task, i),
                        task.rows.stored(this_lane, begin + row_of(task, i)));
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
  used_rows made;
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
  KVPOLICY_HD row_sums operator()(attention_task const&, lane, int, int, int) const { return {}; }
};

/// A tile in shared memory. Every thread constructs one, with the same pointers.
struct attention_storage {
  float* logits;            ///< [tile_rows][tile_pitch]
  std::byte const** key;    ///< [tile_entries]: rows of keys; null after the last
  std::int64_t* position;   ///< [tile_entries]: no_position where an entry takes no part
  float* inner;             ///< [tile_entries]: the running result of the inner reduction
  std::byte const** query;  ///< [tile_rows]: query rows; null after the last
  std::int64_t* limit;      ///< [tile_rows]: a row attends to positions below it
  float* scale;             ///< [tile_rows]: what logits are multiplied by
  row_sums* sums;           ///< [tile_rows]: softmax statistics
  float* key_scale;         ///< [tile_entries]: what elements of keys are multiplied by; null if there are no scales

  /// `scaled`: keys have scales, for which `scale_bytes()` more are needed.
  KVPOLICY_HD attention_storage(shared_arena& arena, bool scaled)
      : logits(arena.take<float>(tile_rows * tile_pitch)),
        key(arena.take<std::byte const*>(tile_entries)),
        position(arena.take<std::int64_t>(tile_entries)),
        inner(arena.take<float>(tile_entries)),
        query(arena.take<std::byte const*>(tile_rows)),
        limit(arena.take<std::int64_t>(tile_rows)),
        scale(arena.take<float>(tile_rows)),
        sums(arena.take<row_sums>(tile_rows)),
        key_scale(scaled ? arena.take<float>(tile_entries) : nullptr) {}

  [[nodiscard]] static constexpr std::size_t scale_bytes() { return shared_arena::bytes_of_piece<float>(tile_entries); }

  [[nodiscard]] static constexpr std::size_t bytes() {
    return shared_arena::bytes_of_piece<float>(tile_rows * tile_pitch) +
           2 * shared_arena::bytes_of_piece<std::int64_t>(tile_entries) +
           shared_arena::bytes_of_piece<float>(tile_entries) +
           2 * shared_arena::bytes_of_piece<std::int64_t>(tile_rows) + shared_arena::bytes_of_piece<float>(tile_rows) +
           shared_arena::bytes_of_piece<row_sums>(tile_rows);
  }

  [[nodiscard]] KVPOLICY_HD bool sees(int row, int entry) const { return position[entry] < limit[row]; }
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
  KVPOLICY_HD void apply_cap(Block& block, attention_task const& task, int count) const {
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
  KVPOLICY_HD void take_entries(Block& block, attention_task const& task, used_rows const& used, lane this_lane,
                                int begin, int end) const {
    for (int i = block.thread(); i < tile_entries; i += block.threads()) {
      int const e = begin + i;
      bool const there = e < end;
      key[i] = there ? task.from.row(this_lane, e) : nullptr;
      if (key_scale != nullptr) key_scale[i] = there ? task.from.scale(this_lane, e) : 1.0f;
      std::int64_t at = task.sees_all() ? 0 : no_position;
      if (there && !task.sees_all()) at = task.scores.lanes.position.row(this_lane)[e];
      bool part = there && at < used.domain;
      if (part && task.candidates()) part = task.scores.rows.row(this_lane)[e] != same_bits<float>(0xFF800000u);
      position[i] = part ? at : no_position;
    }
  }

  /// Fills the tile with rows [base, base + count) of a launch. Their statistics come from `sums_of`.
  template <class Block, class Sums>
  KVPOLICY_HD void take_rows(Block& block, attention_task const& task, used_rows const& used, lane this_lane, int base,
                             int count, Sums const& sums_of) const {
    for (int i = block.thread(); i < tile_rows; i += block.threads()) {
      bool const there = i < count;
      int const head = there ? used.head_of(task, base + i) : 0;
      int const row = there ? used.row_of(task, base + i) : 0;
      int const stored = there ? task.rows.stored(this_lane, used.begin + row) : 0;
      query[i] = there ? task.rows.at(this_lane, this_lane.head * task.group + head, stored) : nullptr;
      limit[i] = !there            ? -no_position
                 : task.sees_all() ? 1
                                   : std::int64_t{task.rows.position.row(this_lane)[stored]} + 1;
      scale[i] = task.scale;
      if (there) sums[i] = sums_of(task, this_lane, head, row, stored);
      if (there && !task.weight.is_one()) sums[i].scale *= task.weight(task.first_row + row, used.all, used.entries);
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
