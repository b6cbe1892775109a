// SPDX-License-Identifier: Apache-2.0
// Rows of tables that several lanes share, and the lists that belong to lanes, for kernels.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>

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

  /// True if this ordinal is listed, by a binary search.
  [[nodiscard]] KVPOLICY_HD bool has(int which) const {
    int begin = 0;
    int end = count;
    while (begin < end) {
      int const middle = begin + (end - begin) / 2;
      if (ordinal[middle] < which) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin < count && ordinal[begin] == which;
  }
};

[[nodiscard]] KVPOLICY_HD inline listed_row listed_for(keep_set const& keep, lane this_lane) {
  int const segment = segment_of(keep.lanes, keep.decides, keep.lanes.index(this_lane));
  return {keep.indices + keep.indptr[segment], static_cast<int>(keep.indptr[segment + 1] - keep.indptr[segment])};
}

/// A lane's row of a list that may be written.
[[nodiscard]] KVPOLICY_HD inline int* writable_list(by_lane<int> const& list, locator const& where, lane this_lane) {
  return list.row(this_lane) + (where.begin.data != nullptr ? *where.begin.row(this_lane) : 0);
}

/// The lane's number in a table, or 0 if the table has no memory.
[[nodiscard]] KVPOLICY_HD inline int number_or_zero(by_lane<int const> const& table, lane this_lane) {
  return table.data != nullptr ? *table.row(this_lane) : 0;
}

/// How many pieces a lane's entries have. There is at least one, since its block may also handle other data of the
/// lane.
template <class Executor>
[[nodiscard]] int pieces_of(Executor& exec, int entries) {
  int const piece = exec.config().entries_of_a_block;
  return entries > piece ? (entries + piece - 1) / piece : 1;
}

}  // namespace KVPOLICY_NAMESPACE::detail
