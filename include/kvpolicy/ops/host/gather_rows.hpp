// SPDX-License-Identifier: Apache-2.0
// Host implementations of gather_rows and permute_columns.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/ops/gather_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/host/lane_moves.hpp>
#include <kvpolicy/ops/host/listed_marks.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Copies one row of a plane from one place to another, bytewise.
inline void move_row(plane const& rows, std::byte const* source, std::byte* target) {
  auto const width = static_cast<std::size_t>(bytes_of(rows.element));
  if (rows.contiguous()) {
    std::memcpy(target, source, width * static_cast<std::size_t>(rows.channels));
    return;
  }
  for (int d = 0; d < rows.channels; ++d)
    std::memcpy(target + d * rows.channel_stride, source + d * rows.channel_stride, width);
}

/// Copies rows of one plane one by one: for each i of `which`, the row at `source(i)` to `target(i)`. The next rows are
/// known, but a processor cannot predict them, so they are prefetched into the second-level cache, which supports more
/// outstanding misses. Non-temporal stores are used if the written lines would be evicted before they are read.
template <class Source, class Target>
void copy_rows_one_by_one(host_executor const& exec, plane const& rows, ordinal_range which, Source const& source,
                          Target const& target) {
  constexpr int ahead = 32;
  constexpr int line = 64;
  constexpr std::int64_t worth_streaming = 1 << 17;
  int const bytes = rows.contiguous() ? rows.channels * bytes_of(rows.element) : 0;
  bool const streams = exec.simd_level() >= isa::avx2 && bytes % line == 0 &&
                       std::int64_t{which.end - which.begin} * bytes >= worth_streaming;
  auto const stream = element_rows_of_isa[exec.simd_level()].stream;
  for (int i = which.begin; i < which.end; ++i) {
    if (i + ahead < which.end) {
      std::byte const* const next = source(i + ahead);
      for (int at = 0; at < bytes; at += line) __builtin_prefetch(next + at, 0, 2);
    }
    std::byte const* const from = source(i);
    std::byte* const to = target(i);
    if (streams && reinterpret_cast<std::uintptr_t>(to) % line == 0) {
      stream(from, to, bytes);
    } else {
      move_row(rows, from, to);
    }
  }
  if (streams) finish_streams();
}

/// Moves the rows of a lane in one plane according to its kept entries. Rows without gaps between them that all move by
/// the same number of places are moved at once.
inline void compact_plane(host_executor const& exec, plane const& rows, locator const& where, lane this_lane,
                          lane_moves const& moves) {
  ordinal_range const which{moves.first_moved(), moves.count()};
  auto const move = [&](auto const& row) {
    copy_rows_one_by_one(exec, rows, which, [&](int i) { return row(moves.source(i)); }, row);
  };
  if (where.kind == locating::identity && rows.bases.data == nullptr) {
    std::byte* const first = rows.row(this_lane.layer, {where.unit_of(this_lane.sequence), 0}, this_lane.head);
    if (rows.contiguous() && rows.token_stride == rows.channels * bytes_of(rows.element) &&
        moves.are_consecutive(which.begin)) {
      std::memmove(first + which.begin * rows.token_stride, first + moves.source(which.begin) * rows.token_stride,
                   static_cast<std::size_t>((which.end - which.begin) * rows.token_stride));
      return;
    }
    move([first, token = rows.token_stride](int ordinal) { return first + ordinal * token; });
  } else {
    move([&](int ordinal) { return rows.row(this_lane.layer, where.at(this_lane, ordinal), this_lane.head); });
  }
}

/// True for the first of the lanes that share a row of this table.
template <class T>
bool owns_row(by_lane<T> const& table, lanes const& batch, lane one) {
  return (table.sequence != 0 || one.sequence == batch.sequence_begin) &&
         (table.layer != 0 || one.layer == batch.layer_begin) && (table.head != 0 || one.head == 0);
}

/// Lists the gaps of these moves if they are few. `memory` has room for all of them.
inline void list_few_gaps(lane_moves& moves, int* memory) {
  if (moves.gone() == 0 || !drops_few(moves.kept.size(), moves.committed)) return;
  list_gaps(moves.kept, moves.committed, memory);
  moves.gaps = {memory, static_cast<std::size_t>(moves.gone())};
}

/// Moves positions and columns of a lane according to its kept entries. Recorders that recompute their columns are told
/// that entries have changed from the first moved one on (`lower_known`).
inline void permute_lane(cache const& in, lane this_lane, lane_moves moves, std::span<recorded_column const> columns) {
  constexpr int few = 256;
  int gaps[few];
  bool const moves_positions = owns_row(in.lanes.position, in.lanes, this_lane);
  bool const moves_numbers = moves_positions || !columns.empty();
  if (moves_numbers && moves.gaps.empty() && moves.gone() <= few) list_few_gaps(moves, gaps);
  if (moves_positions) {
    move_numbers<int>(reinterpret_cast<std::byte*>(in.lanes.position.row(this_lane)), moves);
  }
  lower_known(columns, this_lane, moves.first_moved());
  for (recorded_column const& one : columns) {
    if (one.about.extent != column_extent::lane_entry || one.about.rule != on_move::permute) continue;
    std::byte* const row = one.rows.row(this_lane);
    if (one.about.bytes == 4) {
      move_numbers<std::uint32_t>(row, moves);
    } else if (one.about.bytes == 8) {
      move_numbers<std::uint64_t>(row, moves);
    } else {
      move_bytes(row, static_cast<std::size_t>(one.about.bytes), moves);
    }
  }
}

/// The moves of lane i of a keep set.
inline lane_moves moves_of(keep_set const& keep, cache const& in, int i) {
  lane const this_lane = keep.lanes.at(i);
  int const committed = in.lanes.committed(this_lane);
  return {keep.listed(segment_of(keep.lanes, keep.decides, i)), committed, *in.lanes.count.row(this_lane) - committed};
}

}  // namespace detail

template <>
struct implementation<ops::gather_rows_t, host> {
  static void run(host_executor& exec, keep_set const& keep, cache const& in,
                  std::span<recorded_column const> columns) {
    exec.for_each(keep.lanes.size(), [&](int i, int) {
      lane const this_lane = keep.lanes.at(i);
      detail::lane_moves const moves = detail::moves_of(keep, in, i);
      detail::for_each_moved_plane(
          in, [&](plane const& each) { detail::compact_plane(exec, each, in.where, this_lane, moves); });
      detail::permute_lane(in, this_lane, moves, columns);
    });
  }
};

template <>
struct implementation<ops::permute_columns_t, host> {
  static void run(host_executor& exec, keep_set const& keep, cache const& in,
                  std::span<recorded_column const> columns) {
    auto const bytes = static_cast<std::int64_t>(4 * (columns.size() + 2)) * in.lanes.capacity;
    exec.for_each_range(keep.lanes.size(), bytes, [&](int begin, int end, int) {
      for (int i = begin; i < end; ++i) {
        detail::permute_lane(in, keep.lanes.at(i), detail::moves_of(keep, in, i), columns);
      }
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
