// Rows and recorded numbers on their way from one cache into another, as a device's threads share them out.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/cuda/columns.hpp>
#include <kvpolicy/ops/cuda/page_launches.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// As many bytes as a thread moves at once.
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

/// A thread's share of a run of bytes, thread `first` of `step`, as wide as both ends are aligned.
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

/// A thread's share of a row on its way into a row of another plane: the same elements, whatever their strides.
KVPOLICY_HD inline void copy_row(int first, int step, plane const& from, std::byte const* source, plane const& to,
                                 std::byte* target) {
  int const width = bytes_of(from.element);
  if (from.contiguous() && to.contiguous()) {
    copy_bytes(first, step, source, target, width * from.dims);
    return;
  }
  for (int d = first; d < from.dims; d += step) copy_bytes(0, 1, source + d * from.dim, target + d * to.dim, width);
}

/// Where the rows of a cache's entries are, as a kernel is told.
struct entry_rows {
  locator where;
  few_planes planes;
};
[[nodiscard]] inline entry_rows entry_rows_of(char const* call, cache const& in) {
  return {in.where, all_planes(call, in)};
}

/// A thread's share of an entry's row in one of its planes. Consecutive threads of a warp, consecutive bytes.
KVPOLICY_HD inline void copy_entry(int first, int step, entry_rows const& from, entry_rows const& to, lane this_lane,
                                   int source, int target, int in_plane) {
  plane const& read = from.planes.of[in_plane];
  plane const& written = to.planes.of[in_plane];
  std::byte const* const row = read.row(this_lane.layer, from.where.at(this_lane, source), this_lane.head);
  copy_row(first, step, read, row, written,
           written.row(this_lane.layer, to.where.at(this_lane, target), this_lane.head));
}

/// A column that entries take along: where it is written, and where each of two sources keeps it. Null: it starts at
/// zero.
struct column_pair {
  by_lane<std::byte> to;
  by_lane<std::byte> from[2];
  int bytes;
};
using column_pairs = a_few<column_pair>;

/// The columns of entries among `to`, each with its like among those of the sources.
[[nodiscard]] inline column_pairs moved_with(char const* call, std::span<recorded_column const> to,
                                             std::span<recorded_column const> from,
                                             std::span<recorded_column const> also = {}) {
  few_columns const all = all_columns(call, to);
  column_pairs made;
  for (int i = 0; i < all.count; ++i) {
    recorded_column const& each = all.of[i];
    if (each.about.one != per::lane_entry) continue;
    auto const rows_in = [&](std::span<recorded_column const> among) {
      recorded_column const* const known = same_column(among, each.about);
      return known != nullptr ? known->rows : by_lane<std::byte>{};
    };
    made.of[made.count++] = {each.rows, {rows_in(from), rows_in(also)}, each.about.bytes};
  }
  return made;
}

/// What is recorded about entry `source` of a lane becomes what is recorded about its entry `target`. By one thread.
KVPOLICY_HD inline void copy_numbers(column_pairs const& columns, int of_source, lane this_lane, int source,
                                     int target) {
  for (int i = 0; i < columns.count; ++i) {
    column_pair const& each = columns.of[i];
    std::byte* const written = each.to.row(this_lane) + std::int64_t{target} * each.bytes;
    by_lane<std::byte> const& known = each.from[of_source];
    if (known.data != nullptr) {
      copy_bytes(0, 1, known.row(this_lane) + std::int64_t{source} * each.bytes, written, each.bytes);
    } else {
      for (int b = 0; b < each.bytes; ++b) written[b] = std::byte{0};
    }
  }
}

/// The first `count` of a row's things, `gone` things further on, come to its beginning. By a whole block: nothing is
/// written before all that it overwrites has been read.
template <class Word, class Block>
KVPOLICY_HD void move_down(Block& block, Word* to, Word const* from, int count) {
  for (int first = 0; first < count; first += block.threads()) {
    int const mine = first + block.thread();
    Word held{};
    if (mine < count) held = from[mine];
    block.sync();
    if (mine < count) to[mine] = held;
  }
}

/// How many blocks share out the rows of a lane, `most` at the most, a warp a row.
template <class Executor>
[[nodiscard]] int blocks_for_rows(Executor& exec, int lanes, std::int64_t most) {
  int const warps = exec.config().row_threads / warp_size;
  return blocks_of_a_lane(exec, lanes, (most + warps - 1) / warps);
}

}  // namespace KVPOLICY_NAMESPACE::detail
