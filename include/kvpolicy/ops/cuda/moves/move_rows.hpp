// SPDX-License-Identifier: Apache-2.0
// Moves rows to the front of their lane, in place: the bytes of K, V and other data of entries, one tile of a block at
// a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/cuda/moves/columns.hpp>
#include <kvpolicy/ops/cuda/moves/move_lists.hpp>
#include <kvpolicy/ops/cuda/moves/move_tiles.hpp>
#include <kvpolicy/ops/cuda/moves/rows.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::detail {

/// Throws if rows cannot be moved. Contiguous rows can have any alignment; elements that are apart are moved one by
/// one, so each must be aligned to its size.
inline void check_movable(char const* call, cache const& in) {
  auto const check = [call](char const* name, plane const& rows) {
    if (!rows.contiguous()) check_aligned(call, name, rows);
  };
  check("k", in.k);
  if (!is_latent(in)) check("v", in.v);
  for (plane const& each : in.more) check("more", each);
}

/// The widest access for the rows of a plane.
[[nodiscard]] inline moved_rows moved_plane(plane const& rows) {
  moved_rows made{.rows = rows};
  int const bytes = bytes_of(rows.element);
  if (rows.contiguous()) {
    made.width = alignment_of(rows, true);
    while (rows.channels * bytes % made.width != 0) made.width /= 2;
    made.columns = rows.channels * bytes / made.width;
    made.step = made.width;
  } else {
    made.width = bytes;
    made.columns = rows.channels;
    made.step = rows.channel_stride;
    made.across_rows = (rows.token_stride < 0 ? -rows.token_stride : rows.token_stride) <
                       (rows.channel_stride < 0 ? -rows.channel_stride : rows.channel_stride);
  }
  return made;
}

/// As moved_plane, for a recorded column: values of `bytes` each, in the order of entries.
[[nodiscard]] inline moved_rows moved_column(by_lane<std::byte> const& rows, int bytes) {
  plane const as_plane{rows.data, codec::opaque, bytes, rows.layer, rows.sequence, bytes, rows.head, 1};
  moved_rows made = moved_plane(as_plane);
  made.by_ordinal = true;
  made.slots = rows.slots;
  return made;
}
[[nodiscard]] inline moved_rows moved_positions(by_lane<int> const& position) {
  auto const width = static_cast<std::int64_t>(sizeof(int));
  return moved_column({reinterpret_cast<std::byte*>(position.data), position.sequence * width, position.layer * width,
                       position.head * width, position.slots},
                      sizeof(int));
}

/// Calls visit(few) for everything of a cache that moves in the same way, a few at a time.
template <class Visit>
class moved_list {
 public:
  explicit moved_list(Visit const& visit) : visit_(visit) {}

  void add(moved_rows const& one) {
    if (some_.count == few_moved::most) flush();
    some_.of[some_.count++] = one;
  }
  void add_planes(cache const& in) {
    for_each_moved_plane(in, [&](plane const& each) { add(moved_plane(each)); });
  }
  void add_columns(std::span<recorded_column const> columns) {
    for (recorded_column const& each : columns) {
      if (each.about.extent != column_extent::lane_entry || each.about.rule != on_move::permute) continue;
      add(moved_column(each.rows, each.about.bytes));
    }
  }
  void flush() {
    if (some_.count > 0) visit_(some_);
    some_.count = 0;
  }

 private:
  Visit const& visit_;
  few_moved some_{};
};

/// The columns that on_move::recompute applies to, which hold how many of a lane's entries are still valid.
[[nodiscard]] inline few_columns known_columns(std::span<recorded_column const> columns) {
  few_columns known;
  for (recorded_column const& each : columns) {
    if (each.about.extent != column_extent::lane || each.about.rule != on_move::recompute) continue;
    expects(known.count < few_columns::most, "apply", "columns", known.count + 1, "a device recomputes eight at most");
    known.of[known.count++] = each;
  }
  return known;
}

/// Divides rows into slices until the device has enough blocks. A slice has at least 64 bytes of a row. Returns how
/// many slices there are.
inline int split_columns(few_moved& some, int lanes, launch_config const& numbers) {
  constexpr int narrowest = 64;
  std::int64_t const wanted = std::int64_t{numbers.processors} * numbers.blocks_of_a_processor;
  int all = 0;
  for (int i = 0; i < some.count; ++i) {
    moved_rows& one = some.of[i];
    while (std::int64_t{lanes} * some.count * one.slices < wanted &&
           one.columns * one.width >= 2 * narrowest * one.slices) {
      one.slices *= 2;
    }
    all += one.slices;
  }
  return all;
}

/// Calls mover.run<Width>(block) with the width of the rows' accesses.
template <class Block, class Mover>
KVPOLICY_HD void run_by_width(Block& block, int width, Mover const& mover) {
  switch (width) {
    case 16:
      return mover.template run<16>(block);
    case 8:
      return mover.template run<8>(block);
    case 4:
      return mover.template run<4>(block);
    case 2:
      return mover.template run<2>(block);
    default:
      return mover.template run<1>(block);
  }
}

/// Moves the entries of every lane as `Moves` says, one block for each slice of each lane's rows in each plane or
/// column.
template <class Moves>
struct permute_kernel {
  static constexpr int least_blocks = 3;
  Moves moves;
  kvpolicy::lanes lanes;
  locator where;
  few_moved what;
  few_columns known;
  int slices;  ///< slices of a lane, over all planes and columns

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    always_permitted permission;
    run(block, block.index() / slices, block.index() % slices, permission);
  }
  /// Moves slice `slice` of lane i. Nothing is written before `permission` is asked.
  template <class Block, class Permission>
  KVPOLICY_HD void run(Block& block, int i, int slice, Permission& permission) const {
    auto const now = moves.of(i);
    if (now.none()) return;
    lane const one = lanes.at(i);
    int const begin = first_moved(block, now);
    bool const first_slice = slice == 0;
    int item = 0;
    while (slice >= what.of[item].slices) slice -= what.of[item++].slices;
    moved_rows const& mine = what.of[item];
    if (mine.led_by(lanes, one)) {
      run_by_width(block, mine.width,
                   tile_mover<decltype(now), Permission&>{mine, where, one, now, begin, slice, permission});
    }
    if (permission.permits(block) && first_slice && block.thread() == 0) lower_known(block, known, one, begin);
  }
};

/// Calls launch(kernel) for all kernels that move positions and columns of every lane and, if `rows` is true, its rows.
/// There is one, unless there are more than eight planes and columns.
template <class Executor, class Moves, class Launch>
void for_each_permute(Executor& exec, Moves const& moves, cache const& in, std::span<recorded_column const> columns,
                      bool rows, Launch const& launch) {
  few_columns const known = known_columns(columns);
  auto const visit = [&](few_moved some) {
    int const slices = split_columns(some, in.lanes.size(), exec.config());
    launch(permute_kernel<Moves>{moves, in.lanes, in.where, some, known, slices});
  };
  moved_list list(visit);
  if (rows) list.add_planes(in);
  list.add(moved_positions(in.lanes.position));
  list.add_columns(columns);
  list.flush();
}

template <class Executor, class Moves>
void permute_lanes(Executor& exec, Moves const& moves, cache const& in, std::span<recorded_column const> columns,
                   bool rows) {
  for_each_permute(exec, moves, in, columns, rows, [&](auto const& permute) {
    launch_unless_fault(exec, launch_shape{in.lanes.size() * permute.slices, exec.threads().row, 0}, permute);
  });
}

}  // namespace KVPOLICY_NAMESPACE::detail
