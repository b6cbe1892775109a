// Which rows and entries of a lane attention is of, and one tile of each, as the threads of a block share them.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/cuda/block.hpp>
#include <kvpolicy/ops/cuda/rows.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Entries and, at most, rows of a tile of logits; logits of a row lie side by side, rows `tile_pitch` apart.
inline constexpr int tile_entries = 128;
inline constexpr int tile_rows = 32;
inline constexpr int tile_pitch = tile_entries + 4;  // rows of the same fragment begin in different banks

/// What becomes of the keys and the rows, the same for all lanes. Values only.
struct attention_task {
  keys from;
  query_view rows;
  score_view among;  ///< who takes part; with `candidates` also which entries do
  key_domain domain = key_domain::all;
  int group = 1;           ///< query heads of a lane
  float scale = 1;         ///< 1 / sqrt(D)
  int last_rows = 0;       ///< only the last so many rows; 0: all
  bool only_last = false;  ///< only the very last of them, which leaves the domain as it is
  bool on_logits = false;  ///< the group is reduced before the softmax
  bool rows_apart = true;  ///< the rows of a head follow one another; else the heads of a row do
  int first_row = 0;       ///< of those rows this launch takes [first_row, first_row + most_rows)
  int most_rows = 1;

  [[nodiscard]] KVPOLICY_HD bool sees_all() const { return rows.position.data == nullptr; }
  [[nodiscard]] KVPOLICY_HD bool candidates() const { return domain == key_domain::candidates; }
  [[nodiscard]] KVPOLICY_HD int position_of(lane this_lane, int row) const {
    return rows.position.row(this_lane)[rows.stored(this_lane, row)];
  }
};

/// Later than every position.
inline constexpr std::int64_t no_position = std::int64_t{1} << 40;

/// The rows of a lane that a launch takes.
struct used_rows {
  int begin = 0;                      ///< the first of them, counted as the view counts
  int count = 0;                      ///< of each query head
  int all = 0;                        ///< rows of a head that are used, in this launch or another
  std::int64_t domain = no_position;  ///< entries at positions below take part
  int entries = 0;                    ///< committed ones

  /// Row i of this launch, of all heads: its head in the group, and its number among those of the head.
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

/// How many of a lane's valid rows are not after position `last`: they ascend. Collective of a warp.
template <class Block>
[[nodiscard]] KVPOLICY_HD int rows_until(Block& block, attention_task const& task, lane this_lane, int valid,
                                         int last) {
  int begin = 0;
  int end = valid;
  while (begin < end) {
    int const step = (end - begin + warp_size - 1) / warp_size;
    int const probe = begin + lane_id(block) * step + step - 1;
    int const passed = bits_in(block.ballot(probe < end && task.position_of(this_lane, probe) <= last));
    int const stop = begin + passed * step + step - 1;
    begin += passed * step;
    end = passed < warp_size && stop < end ? stop : end;
  }
  return begin;
}

/// The rows of a lane, as every thread finds them. Collective.
template <class Block>
[[nodiscard]] KVPOLICY_HD used_rows used_rows_of(Block& block, attention_task const& task, lane this_lane) {
  used_rows made;
  made.entries = task.among.lanes.committed(this_lane);
  if (task.rows.rows == 0) return made;
  int end = task.rows.valid(this_lane);
  if (!task.sees_all()) {
    int const* const position = task.among.lanes.position.row(this_lane);
    end = made.entries > 0 ? rows_until(block, task, this_lane, end, position[made.entries - 1]) : 0;
  }
  int begin = task.last_rows > 0 && end > task.last_rows ? end - task.last_rows : 0;
  if (task.domain == key_domain::past && begin < end && !task.sees_all())
    made.domain = task.position_of(this_lane, begin);
  if (task.only_last && begin < end - 1) begin = end - 1;
  made.all = end - begin;
  int const left = made.all - task.first_row;
  made.begin = begin + task.first_row;
  made.count = left < 0 ? 0 : left < task.most_rows ? left : task.most_rows;
  return made;
}

/// What a row makes of its logits: e^(scale * logit - high) * share, of entries at positions below `limit`.
struct row_sums {
  float high = 0;
  float share = 1;
};

/// The threads' own view of what they share; all of them make it alike.
struct attention_storage {
  float* logits;            ///< [tile_rows][tile_pitch]
  std::byte const** key;    ///< [tile_entries]: null of those that are not there
  std::int64_t* position;   ///< [tile_entries]: no_position of those that take no part
  float* inner;             ///< [tile_entries]: what is reduced first, while it is
  std::byte const** query;  ///< [tile_rows]: null behind the last
  std::int64_t* limit;      ///< [tile_rows]
  float* scale;             ///< [tile_rows]
  row_sums* sums;           ///< [tile_rows]

  KVPOLICY_HD explicit attention_storage(shared_arena& arena)
      : logits(arena.take<float>(tile_rows * tile_pitch)),
        key(arena.take<std::byte const*>(tile_entries)),
        position(arena.take<std::int64_t>(tile_entries)),
        inner(arena.take<float>(tile_entries)),
        query(arena.take<std::byte const*>(tile_rows)),
        limit(arena.take<std::int64_t>(tile_rows)),
        scale(arena.take<float>(tile_rows)),
        sums(arena.take<row_sums>(tile_rows)) {}

  [[nodiscard]] static constexpr std::size_t bytes() {
    return shared_arena::bytes_of_piece<float>(tile_rows * tile_pitch) +
           2 * shared_arena::bytes_of_piece<std::int64_t>(tile_entries) +
           shared_arena::bytes_of_piece<float>(tile_entries) +
           2 * shared_arena::bytes_of_piece<std::int64_t>(tile_rows) + shared_arena::bytes_of_piece<float>(tile_rows) +
           shared_arena::bytes_of_piece<row_sums>(tile_rows);
  }

  [[nodiscard]] KVPOLICY_HD bool sees(int row, int entry) const { return position[entry] < limit[row]; }

  /// Entries [begin, end) of a lane, at most a tile.
  template <class Block>
  KVPOLICY_HD void take_entries(Block& block, attention_task const& task, used_rows const& used, lane this_lane,
                                int begin, int end) const {
    for (int i = block.thread(); i < tile_entries; i += block.threads()) {
      int const e = begin + i;
      bool const there = e < end;
      key[i] = there ? task.from.row(this_lane, e) : nullptr;
      std::int64_t at = task.sees_all() ? 0 : no_position;
      if (there && !task.sees_all()) at = task.among.lanes.position.row(this_lane)[e];
      bool part = there && at < used.domain;
      if (part && task.candidates()) part = task.among.rows.row(this_lane)[e] != same_bits<float>(0xFF800000u);
      position[i] = part ? at : no_position;
    }
  }

  /// Rows [base, base + count) of a launch; `sums`: what `sums_of(head, row)` says of each.
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
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
