// SPDX-License-Identifier: Apache-2.0
// Entries of segments that a kernel marks, one bit each, and the ordinals of the marked ones as the lists of a keep
// set.
#pragma once

#include <cstdint>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/cuda/run/lane_finder.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// A row of bits for each segment, in words of 32 neighbours.
struct entry_marks {
  std::uint32_t* words;
  int of_segment;  ///< words of a segment

  [[nodiscard]] KVPOLICY_HD static constexpr int words_of(int bound) {
    return bound < 1 ? 1 : (bound - 1) / warp_size + 1;
  }
  [[nodiscard]] KVPOLICY_HD std::uint32_t* row(int segment) const { return words + std::int64_t{segment} * of_segment; }
};

/// Writes the row of a segment: marks the entries below `count` for which is_marked(ordinal) is true. Each entry is
/// asked about once. Collective for warps.
template <class Block, class Predicate>
KVPOLICY_HD void mark_entries(Block& block, entry_marks const& marks, int segment, int count,
                              Predicate const& is_marked) {
  constexpr int at_once = 4;  // loads are issued together
  std::uint32_t* const row = marks.row(segment);
  int const step = block.threads() / warp_size;
  for (int first = warp_id(block); first < marks.of_segment; first += at_once * step) {
    bool marked[at_once];
    for (int j = 0; j < at_once; ++j) {
      std::int64_t const e = (first + std::int64_t{j} * step) * warp_size + lane_id(block);
      marked[j] = e < count && is_marked(static_cast<int>(e));
    }
    for (int j = 0; j < at_once; ++j) {
      std::uint32_t const word = block.ballot(marked[j]);
      if (lane_id(block) == 0 && first + j * step < marks.of_segment) row[first + j * step] = word;
    }
  }
}

/// The number of a bit: the ordinal of its entry if it is marked, else -1.
struct marked_ordinals {
  std::uint32_t const* words;
  unsigned row;  ///< bits of a segment
  divisor rows;

  [[nodiscard]] KVPOLICY_HD int operator()(unsigned bit) const {
    bool const is_marked = (words[bit / warp_size] >> bit % warp_size & 1u) != 0;
    return is_marked ? static_cast<int>(bit - rows.quotient(bit) * row) : -1;
  }
};

/// Scratch of a verb that lists marked entries: marks, and behind them the storage of a selection.
struct marks_scratch {
  entry_marks marks;
  std::byte* selection;

  marks_scratch(std::byte* from, int segments, int bound)
      : marks{reinterpret_cast<std::uint32_t*>(from), entry_marks::words_of(bound)},
        selection(from + bytes_of_marks(segments, bound)) {}
  [[nodiscard]] static std::size_t bytes(int segments, int bound) {
    return bytes_of_marks(segments, bound) +
           selection_bytes(std::int64_t{segments} * entry_marks::words_of(bound) * warp_size);
  }

 private:
  [[nodiscard]] static std::size_t bytes_of_marks(int segments, int bound) {
    auto const words = static_cast<std::size_t>(segments) * static_cast<std::size_t>(entry_marks::words_of(bound));
    return (words * sizeof(std::uint32_t) + 255) / 256 * 256;
  }
};

/// Writes the ordinals of all marked entries to `keep.indices`, ascending in each segment, once `keep.indptr` has the
/// offsets. Takes one selection for every 2^31 entries.
template <class Executor>
void list_marked(Executor& exec, keep_set const& keep, marks_scratch const& scratch) {
  int const row = scratch.marks.of_segment * warp_size;
  int const fitting = exec.config().entries_of_a_selection / row;
  int const at_once = fitting < 1 ? 1 : fitting;
  int const segments = keep.segments();
  auto const bits = static_cast<unsigned>(row);
  for (int first = 0; first < segments; first += at_once) {
    int const some = segments - first < at_once ? segments - first : at_once;
    exec.select_numbers(std::int64_t{some} * row, marked_ordinals{scratch.marks.row(first), bits, divisor::of(bits)},
                        {keep.indices, keep.indptr + first}, scratch.selection);
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
