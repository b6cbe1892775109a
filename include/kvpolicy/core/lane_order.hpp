// SPDX-License-Identifier: Apache-2.0
// The order of a lane's entries, where it need not be that of their positions.
#pragma once

#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE {

/// How the entries of a lane are ordered. Without it (`lanes::order` is null) positions ascend with ordinals, and to
/// drop an entry moves every later one up. With it, the newest entry takes the place of the dropped one (`overwrite`),
/// whatever the length of the lane. Only calls of the library write it. Zeros mean that positions ascend.
///
/// The entries are in three parts. Those before `begin` ascend, and are older than all others. Those from `begin` to
/// `end` are a ring: positions ascend from `oldest` to `end`, and go on from `begin` to `oldest`. With `oldest` = -1
/// they are in no order. Those from `end` on ascend, and are newer than all others.
struct lane_order {
  int begin = 0;
  int oldest = 0;
  int end = 0;
  int newest = 0;  ///< the highest position before `end`

  [[nodiscard]] KVPOLICY_HD constexpr bool ascends() const { return oldest == begin; }
  [[nodiscard]] KVPOLICY_HD constexpr bool is_ring() const { return oldest >= 0; }

  /// The position of the newest of `count` entries; -1 if there is none.
  [[nodiscard]] KVPOLICY_HD constexpr int newest_of(int const* position, int count) const {
    if (count == 0) return -1;
    return ascends() || count > end ? position[count - 1] : newest;
  }

  /// The ordinal of the entry before which `rank` older ones are. The lane must be a ring.
  [[nodiscard]] KVPOLICY_HD constexpr int ordinal_of(int rank) const {
    if (ascends() || rank < begin || rank >= end) return rank;
    int const turned = rank - begin + oldest;
    return turned < end ? turned : turned - end + begin;
  }

  friend bool operator==(lane_order const&, lane_order const&) = default;
};

/// What happens to a lane of `committed` entries that drops the one at `ordinal`: the entry at `source` takes its
/// place, those behind `source` move up by one, and the lane then has the order `after`. If `source` is `ordinal`, the
/// later ones just move up.
struct lane_replacement {
  int source = 0;
  lane_order after{};
};

/// See `lane_replacement`. `position` has the positions before.
///
/// - cost: O(1). If the newest entry goes and the order does not say which one is then the newest, O(committed).
[[nodiscard]] KVPOLICY_HD constexpr lane_replacement replacement_of(lane_order const& now, int const* position,
                                                                    int committed, int ordinal) {
  int const last = committed - 1;
  if (now.ascends()) {
    if (ordinal == last) return {ordinal, {}};
    bool const still = ordinal == last - 1;  // the newest entry alone follows
    return {last, still ? lane_order{} : lane_order{ordinal, ordinal + 1, last, position[last]}};
  }
  if (ordinal >= now.end) return {ordinal, now};
  if (now.is_ring() && ordinal == now.oldest && committed > now.end) {
    lane_order after = now;
    after.newest = position[now.end];
    if (++after.oldest == after.end) after = {};
    return {now.end, after};
  }
  lane_order after{now.begin < ordinal ? now.begin : ordinal, -1, last, now.newest_of(position, committed)};
  if (position[ordinal] == after.newest) {
    after.newest = -1;
    for (int e = 0; e < committed; ++e) {
      if (e != ordinal && position[e] > after.newest) after.newest = position[e];
    }
  }
  return {last, after};
}

}  // namespace KVPOLICY_NAMESPACE
