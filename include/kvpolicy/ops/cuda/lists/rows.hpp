// SPDX-License-Identifier: Apache-2.0
// Rows of tables that several lanes share, and the lists that belong to lanes, for kernels.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/lists.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The rows of a table. Each row is represented by its owner, the first of the lanes that share it.
struct row_owners {
  kvpolicy::lanes lanes;
  bool by_sequence;  ///< true: sequences have rows of their own
  bool by_layer;     ///< true: layers have rows of their own
  bool by_head;      ///< true: heads have rows of their own

  [[nodiscard]] KVPOLICY_HD int layers() const { return by_layer ? lanes.layers() : 1; }
  [[nodiscard]] KVPOLICY_HD int heads() const { return by_head ? lanes.heads : 1; }
  /// How many rows one sequence has.
  [[nodiscard]] KVPOLICY_HD int of_sequence() const { return layers() * heads(); }
  [[nodiscard]] KVPOLICY_HD int count() const { return (by_sequence ? lanes.sequences : 1) * of_sequence(); }

  /// The owner of row i, in the order of lanes.
  [[nodiscard]] KVPOLICY_HD lane at(int i) const {
    return {lanes.sequence_begin + i / of_sequence(), lanes.layer_begin + i / heads() % layers(), i % heads()};
  }
  /// The owner of row i of one sequence.
  [[nodiscard]] KVPOLICY_HD lane at(int sequence, int i) const {
    return {sequence, lanes.layer_begin + i / heads(), i % heads()};
  }

  /// The number i of a lane's row.
  [[nodiscard]] KVPOLICY_HD int row(lane one) const {
    int const sequence = by_sequence ? one.sequence - lanes.sequence_begin : 0;
    int const layer = sequence * layers() + (by_layer ? one.layer - lanes.layer_begin : 0);
    return layer * heads() + (by_head ? one.head : 0);
  }

  /// How many lanes of a sequence share a row.
  [[nodiscard]] KVPOLICY_HD int sharers() const {
    return (by_layer ? 1 : lanes.layers()) * (by_head ? 1 : lanes.heads);
  }
  /// The j-th lane that shares the owner's row.
  [[nodiscard]] KVPOLICY_HD lane sharer(lane owner, int j) const {
    int const heads_apart = by_head ? 1 : lanes.heads;
    return {owner.sequence, owner.layer + j / heads_apart, owner.head + j % heads_apart};
  }
};

template <class T>
[[nodiscard]] row_owners owners_of(by_lane<T> const& table, lanes const& batch) {
  return {batch, table.sequence != 0, table.layer != 0, table.head != 0};
}

/// The ordinals that a keep set lists for one segment.
struct listed_row {
  int const* ordinal;
  int count;

  /// How many listed ordinals are below this one, by a binary search.
  [[nodiscard]] KVPOLICY_HD int before(int which) const {
    int begin = 0, end = count;
    while (begin < end) {
      int const middle = begin + (end - begin) / 2;
      bool const lower = ordinal[middle] < which;
      begin = lower ? middle + 1 : begin;
      end = lower ? end : middle;
    }
    return begin;
  }
  /// True if this ordinal is listed.
  [[nodiscard]] KVPOLICY_HD bool has(int which) const {
    int const at = before(which);
    return at < count && ordinal[at] == which;
  }
};

/// What a keep set lists for the i-th lane of a batch.
[[nodiscard]] KVPOLICY_HD inline listed_row listed_for(keep_set const& keep, lanes const& batch, int i) {
  int const segment = segment_of(batch, keep.decides, i);
  return {keep.indices + keep.indptr[segment], static_cast<int>(keep.indptr[segment + 1] - keep.indptr[segment])};
}
[[nodiscard]] KVPOLICY_HD inline listed_row listed_for(keep_set const& keep, lane this_lane) {
  return listed_for(keep, keep.lanes, keep.lanes.index(this_lane));
}

/// Three counts. What a block adds to them is packed into one number for a prefix sum: less than 2^20 to each.
struct three_counts {
  int of[3] = {};

  /// One of this kind; of none if it is below 0.
  [[nodiscard]] KVPOLICY_HD static std::uint64_t packed(int kind) {
    return kind < 0 ? 0 : std::uint64_t{1} << (bits * kind);
  }
  [[nodiscard]] KVPOLICY_HD three_counts with(std::uint64_t sum) const {
    constexpr std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
    return {{of[0] + static_cast<int>(sum & mask), of[1] + static_cast<int>(sum >> bits & mask),
             of[2] + static_cast<int>(sum >> (2 * bits))}};
  }

 private:
  static constexpr int bits = 20;
};

/// Adds to a number of the statistics, from any block. Integer sums do not depend on their order.
template <class Block>
KVPOLICY_HD void add_to_stats(Block& block, std::int64_t* number, std::int64_t more) {
  if (more != 0) block.atomic_add(reinterpret_cast<std::uint64_t*>(number), static_cast<std::uint64_t>(more));
}

/// How many pieces a lane's entries have. There is at least one, since its block may also handle other data of the
/// lane.
template <class Executor>
[[nodiscard]] int pieces_of(Executor& exec, int entries) {
  int const piece = exec.config().entries_of_a_block;
  return entries > piece ? (entries + piece - 1) / piece : 1;
}

/// One block for each piece of the entries of each row's owner.
template <class Body>
struct row_pieces_kernel {
  row_owners rows;
  int pieces;
  int entries;  ///< entries of a piece
  Body body;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const begin = block.index() % pieces * entries;
    body(block, rows.at(block.index() / pieces), ordinal_range{begin, begin + entries});
  }
};

/// Launches body(block, owner, piece), which changes the engine's memory, for rows of up to `bound` entries. A piece
/// may go beyond the last one.
template <class Executor, class Body>
void launch_row_pieces(Executor& exec, row_owners const& rows, int bound, Body const& body) {
  int const pieces = pieces_of(exec, bound);
  launch_unless_fault(exec, launch_shape{rows.count() * pieces, exec.threads().entry, 0},
                      row_pieces_kernel<Body>{rows, pieces, exec.config().entries_of_a_block, body});
}

}  // namespace KVPOLICY_NAMESPACE::detail
