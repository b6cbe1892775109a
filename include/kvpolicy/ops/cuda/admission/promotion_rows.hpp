// SPDX-License-Identifier: Apache-2.0
// Copies rows and recorded columns from one cache into another, divided among the threads of a device.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/cuda/moves/columns.hpp>
#include <kvpolicy/ops/cuda/run/page_launches.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The bytes that a thread moves at once.
struct alignas(16) four_words {
  unsigned word[4];
};

template <class Word>
KVPOLICY_HD void copy_words(int first, int step, std::byte const* from, std::byte* to, int bytes) {
  auto const* const source = reinterpret_cast<Word const*>(from);
  auto* const target = reinterpret_cast<Word*>(to);
  int const words = bytes / static_cast<int>(sizeof(Word));
  for (int i = first; i < words; i += step) target[i] = source[i];
}

/// Copies the part of some bytes that belongs to thread `first` of `step`, by the widest access for which both ends are
/// aligned.
KVPOLICY_HD inline void copy_bytes(int first, int step, std::byte const* from, std::byte* to, int bytes) {
  auto const bits =
      reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to) | static_cast<unsigned>(bytes);
  if (bits % sizeof(four_words) == 0) {
    copy_words<four_words>(first, step, from, to, bytes);
  } else if (bits % sizeof(unsigned) == 0) {
    copy_words<unsigned>(first, step, from, to, bytes);
  } else if (bits % sizeof(std::uint16_t) == 0) {
    copy_words<std::uint16_t>(first, step, from, to, bytes);
  } else {
    copy_words<unsigned char>(first, step, from, to, bytes);
  }
}

/// Copies the part of a row that belongs to thread `first` of `step` into a row of another plane, which has the same
/// elements, but may have other strides.
KVPOLICY_HD inline void copy_row(int first, int step, byte_rows const& from, std::byte const* source,
                                 byte_rows const& to, std::byte* target) {
  int const width = bytes_of(from.element);
  if (from.contiguous() && to.contiguous()) {
    copy_bytes(first, step, source, target, width * from.dims);
    return;
  }
  for (int d = first; d < from.dims; d += step) copy_bytes(0, 1, source + d * from.dim, target + d * to.dim, width);
}

/// The locator and planes of a cache, in a kernel's arguments.
struct entry_rows {
  locator where;
  few_planes planes;
};
[[nodiscard]] inline entry_rows entry_rows_of(char const* call, cache const& in) {
  return {in.where, all_planes(call, in)};
}

/// Copies the part of an entry's row in one plane that belongs to thread `first` of `step`. Consecutive threads copy
/// consecutive bytes.
KVPOLICY_HD inline void copy_entry(int first, int step, entry_rows const& from, few_planes const& to, lane this_lane,
                                   int source, place target, int in_plane) {
  byte_rows const& read = from.planes.of[in_plane];
  byte_rows const& written = to.of[in_plane];
  std::byte const* const row = read.row(this_lane.layer, from.where.at(this_lane, source), this_lane.head);
  copy_row(first, step, read, row, written, written.row(this_lane.layer, target, this_lane.head));
}

/// A column whose values move with entries: the destination and the same column of the source. If the source has none,
/// the values start at zero.
struct column_pair {
  by_lane<std::byte> to;
  by_lane<std::byte> from;
  int bytes;
};
using column_pairs = a_few<column_pair>;

/// The columns of `to` that have a value for each entry, each with the same column of the source.
[[nodiscard]] inline column_pairs moved_with(char const* call, std::span<recorded_column const> to,
                                             std::span<recorded_column const> from) {
  few_columns const all = all_columns(call, to);
  column_pairs made;
  for (int i = 0; i < all.count; ++i) {
    recorded_column const& each = all.of[i];
    if (each.about.extent != column_extent::lane_entry) continue;
    recorded_column const* const known = same_column(from, each.about);
    made.of[made.count++] = {each.rows, known != nullptr ? known->rows : by_lane<std::byte>{}, each.about.bytes};
  }
  return made;
}

/// Copies the recorded values of entry `source` of a lane to its entry `target`. Called by one thread.
KVPOLICY_HD inline void copy_numbers(column_pairs const& columns, lane this_lane, int source, int target) {
  for (int i = 0; i < columns.count; ++i) {
    column_pair const& each = columns.of[i];
    std::byte* const written = each.to.row(this_lane) + std::int64_t{target} * each.bytes;
    if (each.from.data != nullptr) {
      copy_bytes(0, 1, each.from.row(this_lane) + std::int64_t{source} * each.bytes, written, each.bytes);
    } else {
      for (int b = 0; b < each.bytes; ++b) written[b] = std::byte{0};
    }
  }
}

/// Moves the `count` elements at `from` down to `to`, by a whole block. No element is overwritten before it has been
/// read.
template <class Word, class Block>
KVPOLICY_HD void move_down(Block& block, Word* to, Word const* from, int count) {
  for (int first = 0; first < count; first += block.threads()) {
    int const mine = first + block.thread();
    Word staged{};
    if (mine < count) staged = from[mine];
    block.sync();
    if (mine < count) to[mine] = staged;
  }
}

/// How many blocks copy the rows of a lane, of which there are at most `most`; one warp for each row.
template <class Executor>
[[nodiscard]] int blocks_for_rows(Executor& exec, int lanes, std::int64_t most) {
  int const warps = exec.threads().row / warp_size;
  return count_blocks_per_lane(exec, lanes, (most + warps - 1) / warps);
}

}  // namespace KVPOLICY_NAMESPACE::detail
