// SPDX-License-Identifier: Apache-2.0
// The entries of a lane that compete to be dropped, in lanes that are out of order.
#pragma once

#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Ordinals [begin, end) whose positions are in [low, high).
struct competing_entries {
  int begin;
  int end;
  std::int64_t low;
  std::int64_t high;

  [[nodiscard]] KVPOLICY_HD bool have(int position) const { return low <= position && position < high; }
};

/// The lowest position such that `count` of a lane's entries have it or a higher one, 0 < count <= entries. Collective.
/// At most `count` entries have one of the `count` highest positions, so that the search goes down from there, and
/// never too far. `storage` is used after a barrier.
template <class Block>
[[nodiscard]] KVPOLICY_HD int lowest_of_newest(Block& block, lane_entries const& of, int count,
                                               collective_storage* storage) {
  auto const count_from = [&](int limit) {
    int found = 0;
    for (int e = block.thread(); e < of.count; e += block.threads()) found += of.position[e] >= limit ? 1 : 0;
    block.sync();
    return block.reduce(storage, found, plus_op{});
  };
  int low = 0;
  int high = of.order.newest_of(of.position, of.count) - count + 1;  // at most `count` entries are here or above
  for (int tries = 0; tries < 4; ++tries) {
    int const found = count_from(high);
    if (found == count) return high;
    high -= count - found;
  }
  while (low < high) {  // the highest position that at least `count` entries reach
    int const middle = low + (high - low + 1) / 2;
    bool const enough = count_from(middle) >= count;
    low = enough ? middle : low;
    high = enough ? high : middle - 1;
  }
  return low;
}

/// The candidates of a lane: the entries of these ranks, which may be dropped. Collective, with the same `storage`.
template <class Block>
[[nodiscard]] KVPOLICY_HD competing_entries competing_entries_of(Block& block, lane_entries const& of,
                                                                 ordinal_range ranks, collective_storage* storage) {
  competing_entries made{ranks.begin, ranks.end, -(std::int64_t{1} << 40), std::int64_t{1} << 40};
  lane_order const& order = of.order;
  if (order.ascends() || ranks.begin >= ranks.end) return made;
  auto const position_at = [&](int rank) {
    return order.is_ring() ? of.position[order.ordinal_of(rank)]
                           : lowest_of_newest(block, of, of.count - rank, storage);
  };
  if (ranks.end < of.count) made.high = position_at(ranks.end);
  made.begin = min_op{}(ranks.begin, order.begin);
  made.end = of.count;
  if (ranks.begin > made.begin) made.low = position_at(ranks.begin);
  return made;
}

}  // namespace KVPOLICY_NAMESPACE::detail
