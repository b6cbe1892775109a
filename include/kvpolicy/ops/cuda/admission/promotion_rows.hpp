// SPDX-License-Identifier: Apache-2.0
// Copies rows and recorded columns from one cache into another, divided among the threads of a device.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/cuda/moves/columns.hpp>
#include <kvpolicy/ops/cuda/moves/move_tiles.hpp>
#include <kvpolicy/ops/cuda/run/page_launches.hpp>

namespace KVPOLICY_NAMESPACE::detail {

template <class Word>
KVPOLICY_HD void copy_words(int first, int step, std::byte const* from, std::byte* to, int bytes) {
  auto const* const source = reinterpret_cast<Word const*>(from);
  auto* const target = reinterpret_cast<Word*>(to);
  int const words = bytes / static_cast<int>(sizeof(Word));
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  for (int i = first; i < words; i += step) target[i] = source[i];
}

/// Copies the part of some bytes that belongs to thread `first` of `step`, by up to four of them at once.
KVPOLICY_HD inline void copy_bytes(int first, int step, std::byte const* from, std::byte* to, int bytes) {
  auto const bits =
      reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to) | static_cast<unsigned>(bytes);
  if (bits % sizeof(unsigned) == 0) {
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

/// An entry that is copied, and its places on both sides.
struct copied_entry {
  lane where;
  place from;
  place to;
};

/// A thread among those that copy entries: it is number `part` of the `width` threads of an entry.
struct row_threads {
  int part;
  int width;
};

/// The planes of two caches with the same elements, between which rows are copied.
template <int Most = few_planes::most>
struct copied_planes {
  a_few<byte_rows, Most> from;
  a_few<byte_rows, Most> to;
  int wide = 0;  ///< in the first planes rows are whole pieces of 16 bytes, and aligned as such on both sides

  [[nodiscard]] KVPOLICY_HD int count() const { return to.count; }

  /// Copies the rows of an entry. Two wide ones are read before the first of them is written.
  KVPOLICY_HD void copy(row_threads const& who, copied_entry const& one) const {
    for (int p = 0; p < wide; p += 2) copy_two(who, {row_of(one, p), row_of(one, p + 1 < wide ? p + 1 : p)});
    for (int p = wide; p < count(); ++p) {
      copied_row const row = row_of(one, p);
      if (row.to != row.from) copy_row(who.part, who.width, from.of[p], row.from, to.of[p], row.to);
    }
  }

 private:
  /// The ends of a row.
  struct copied_row {
    std::byte const* from;
    std::byte* to;
    int bytes;
  };
  [[nodiscard]] KVPOLICY_HD copied_row row_of(copied_entry const& one, int plane) const {
    return {from.of[plane].row(one.where.layer, one.from, one.where.head),
            to.of[plane].row(one.where.layer, one.to, one.where.head), from.of[plane].bytes()};
  }
  KVPOLICY_HD static void copy_two(row_threads const& who, copied_row const (&rows)[2]) {
    using piece = byte_vector<16>;
    constexpr int size = sizeof(piece);
    constexpr int at_once = 4;  // two of each row
    int const longest = max_op{}(rows[0].bytes, rows[1].bytes);
    for (int begin = who.part * size; begin < longest; begin += 2 * who.width * size) {
      piece held[at_once];
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
      for (int j = 0; j < at_once; ++j) {
        copied_row const& row = rows[j % 2];
        held[j] =
            *reinterpret_cast<piece const*>(row.from + min_op{}(begin + j / 2 * who.width * size, row.bytes - size));
      }
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
      for (int j = 0; j < at_once; ++j) {
        copied_row const& row = rows[j % 2];
        int const at = begin + j / 2 * who.width * size;
        if (row.to != row.from && at < row.bytes) *reinterpret_cast<piece*>(row.to + at) = held[j];
      }
    }
  }
};

/// The planes of two caches, wide ones first.
[[nodiscard]] inline copied_planes<> planes_between(char const* call, cache const& from, cache const& to) {
  few_planes const read = all_planes(call, from), written = all_planes(call, to);
  copied_planes<> made;
  for (bool const wide : {true, false}) {
    for (int p = 0; p < read.count; ++p) {
      if ((read.of[p].is_wide && written.of[p].is_wide) != wide) continue;
      made.from.of[made.from.count++] = read.of[p];
      made.to.of[made.to.count++] = written.of[p];
    }
    if (wide) made.wide = made.to.count;
  }
  return made;
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
template <int Most>
KVPOLICY_HD void copy_numbers(a_few<column_pair, Most> const& columns, lane this_lane, int source, int target) {
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

/// Moves the `count` elements at `from` down to `to`, by `width` neighbouring threads of a warp. No element is
/// overwritten before it has been read. All threads of the warp call this.
template <class Word, class Block>
KVPOLICY_HD void move_down(Block& block, int width, Word* to, Word const* from, int count) {
  constexpr int at_once = sizeof(Word) > 1 ? 32 : 1;  // elements of a thread
  for (int first = lane_id(block) & (width - 1); block.ballot(first < count) != 0; first += at_once * width) {
    Word staged[static_cast<std::size_t>(at_once)];
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int j = 0; j < at_once && first < count; ++j) staged[j] = from[min_op{}(first + j * width, count - 1)];
    block.sync_warp();
    for (int j = 0; j < at_once; ++j) {
      if (first + j * width < count) to[first + j * width] = staged[j];
    }
  }
}

/// How many blocks copy the entries of a lane, of which there are at most `most`; one warp for each.
template <class Executor>
[[nodiscard]] int blocks_for_entries(Executor& exec, int lanes, std::int64_t most) {
  int const warps = exec.threads().row / warp_size;
  return count_blocks_per_lane(exec, lanes, (most + warps - 1) / warps);
}

/// Copies rows, one warp for each entry, then recorded columns, one thread for each entry. Block i handles piece i %
/// pieces of lane i / pieces.
struct copy_entries_kernel {
  kvpolicy::lanes from;
  locator from_where;
  locator to;
  copied_planes<> planes;
  column_pairs columns{};
  int const* first = nullptr;  ///< for each sequence the first entry that is copied; null: all are
  by_lane<int> behind{};       ///< the entries behind which they go; null: none
  int sequences_apart = 0;     ///< the difference between the index of a sequence in the other cache and here
  int pieces = 1;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = from.at(block.index() / pieces);
    lane const there{one.sequence + sequences_apart, one.layer, one.head};
    int const piece = block.index() % pieces;
    int const begin = first != nullptr ? first[one.sequence] : 0;
    int const count = behind.data != nullptr ? *behind.row(there) : 0;
    int const more = *from.count.row(one) - begin;
    int const warps = block.threads() / warp_size;
    for (int e = piece * warps + warp_id(block); e < more; e += pieces * warps) {
      planes.copy({lane_id(block), warp_size}, {one, from_where.at(one, begin + e), to.at(there, count + e)});
    }
    for (int e = piece * block.threads() + block.thread(); e < more; e += pieces * block.threads()) {
      copy_numbers(columns, one, begin + e, count + e);
    }
  }
};

template <class Executor>
void launch_copies(Executor& exec, copy_entries_kernel kernel) {
  kernel.pieces = blocks_for_entries(exec, kernel.from.size(), kernel.from.capacity);
  launch_unless_fault(exec, launch_shape{kernel.from.size() * kernel.pieces, exec.threads().row, 0}, kernel);
}

}  // namespace KVPOLICY_NAMESPACE::detail
