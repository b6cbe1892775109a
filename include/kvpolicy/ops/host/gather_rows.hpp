// SPDX-License-Identifier: Apache-2.0
// Host implementations of gather_rows and permute_columns, and how a lane's entries move when it is compacted.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <kvpolicy/core/config.hpp>
#include <kvpolicy/ops/gather_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/host/listed_marks.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>
#include <kvpolicy/ops/host/unit_marks.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The moves of a lane's kept entries and of the drafts behind them: entry i comes from `source(i)`. Sources ascend.
struct lane_moves {
  std::span<int const> kept;
  int committed = 0;
  int drafts = 0;
  std::span<int const> gaps{};  ///< the dropped entries, if they are few and were listed; empty: not listed

  [[nodiscard]] int gone() const { return committed - static_cast<int>(kept.size()); }
  [[nodiscard]] int count() const { return static_cast<int>(kept.size()) + drafts; }
  [[nodiscard]] int source(int i) const {
    auto const entries = static_cast<int>(kept.size());
    return i < entries ? kept[static_cast<std::size_t>(i)] : committed + i - entries;
  }
  /// The first entry that moves, or count() if none does. Sources ascend, so a binary search finds it.
  [[nodiscard]] int first_moved() const {
    if (!gaps.empty()) return gaps.front();
    if (gone() == 0) return count();
    int begin = 0, end = static_cast<int>(kept.size());
    while (begin < end) {
      int const middle = begin + (end - begin) / 2;
      bool const stays = kept[static_cast<std::size_t>(middle)] == middle;
      (stays ? begin : end) = stays ? middle + 1 : middle;
    }
    return begin;
  }
  /// True if the entries from the i-th on come from consecutive places. Sources ascend, so the ends tell.
  [[nodiscard]] bool are_consecutive(int i) const {
    return i < count() && source(count() - 1) - source(i) == count() - 1 - i;
  }
};

/// Compacts an array of values of any width: moves what is between two listed gaps at once.
inline void move_between_gaps(std::byte* row, std::size_t width, lane_moves const& moves) {
  int const all = moves.committed + moves.drafts;
  for (std::size_t g = 0; g < moves.gaps.size(); ++g) {
    int const begin = moves.gaps[g] + 1, end = g + 1 < moves.gaps.size() ? moves.gaps[g + 1] : all;
    std::byte* const from = row + static_cast<std::size_t>(begin) * width;
    std::size_t const bytes = static_cast<std::size_t>(end - begin) * width;
    for (std::size_t at = 0; at < bytes; at += 64) prefetch_stream(from + at);
    std::memmove(from - (g + 1) * width, from, bytes);
  }
}

/// Compacts an array of values of any width, one after another unless the gaps are listed.
inline void move_bytes(std::byte* row, std::size_t width, lane_moves const& moves) {
  if (!moves.gaps.empty()) return move_between_gaps(row, width, moves);
  for (int i = moves.first_moved(); i < moves.count(); ++i) {
    std::memcpy(row + static_cast<std::size_t>(i) * width, row + static_cast<std::size_t>(moves.source(i)) * width,
                width);
  }
}

/// Compacts an array of numbers, sixteen kept entries at a time. Sixteen neighbours are copied at once. If sixteen
/// entries span few cache lines, the stream is prefetched; otherwise each entry is, because a processor cannot predict
/// their addresses.
template <class Number>
void move_numbers(std::byte* row, lane_moves const& moves) {
  constexpr int some = 16, ahead = 32 * some;
  constexpr std::ptrdiff_t width = sizeof(Number);
  if (!moves.gaps.empty()) return move_between_gaps(row, sizeof(Number), moves);
  int i = moves.first_moved();
  int const scattered_end = moves.are_consecutive(i) ? i : static_cast<int>(moves.kept.size());
  auto const move = [&](int from, int to) {
    Number number;
    std::memcpy(&number, row + from * width, sizeof number);
    std::memcpy(row + to * width, &number, sizeof number);
  };
  int const* const entry = moves.kept.data();
  for (; i + some <= scattered_end; i += some) {
    int const span = entry[i + some - 1] - entry[i];
    if (span < 5 * some) {
      for (std::ptrdiff_t at = 0; at <= span * width; at += 64) prefetch_stream(row + entry[i] * width + at);
    } else if (i + ahead + some <= scattered_end) {
      for (int k = 0; k < some; ++k) __builtin_prefetch(row + entry[i + ahead + k] * width, 0, 2);
    }
    if (span == some - 1) {
      Number numbers[some];
      std::memcpy(numbers, row + entry[i] * width, sizeof numbers);
      std::memcpy(row + i * width, numbers, sizeof numbers);
    } else {
      for (int k = i; k < i + some; ++k) move(entry[k], k);
    }
  }
  for (; i < scattered_end; ++i) move(entry[i], i);
  if (i < moves.count()) {
    std::memmove(row + i * width, row + moves.source(i) * width, static_cast<std::size_t>((moves.count() - i) * width));
  }
}

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

/// Moves the rows of a lane in one plane according to its kept entries. In a contiguous cache whose rows are adjacent
/// one `memmove` moves all rows, if they come from consecutive places, as under StreamingLLM. Otherwise rows are copied
/// one by one.
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
  bool const moves_positions = leads_row(in.lanes.position, in.lanes, this_lane);
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
