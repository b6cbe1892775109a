// SPDX-License-Identifier: Apache-2.0
// Verb: computes a number for each lane from its entries.
#pragma once

#include <concepts>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `map_lanes(exec, lanes, f, out)`: out[lane] = f(entries of the lane), for every lane.
///
/// - in: `f` is a struct with a KVPOLICY_HD `int operator()(lane_entries const&) const`. The entries have the lane, its
///   committed count and the positions; their `budget` is 0.
/// - out: `out` has one int for each lane.
/// - cost: one call of `f` a lane; no scratch.
/// - throws: on the host, an exception of `f` is passed on, and the numbers of some lanes are written.
struct map_lanes_t : verb<map_lanes_t> {
  static constexpr auto name = "map_lanes";

  template <class Function>
    requires requires(Function const& f, lane_entries const& of) {
      { f(of) } -> std::same_as<int>;
    }
  static void check(lanes const&, Function const&, by_lane<int> const& out) {
    expects(out.data != nullptr, name, "out", "null", "it has a number for each lane");
  }
};
inline constexpr map_lanes_t map_lanes{};

}  // namespace KVPOLICY_NAMESPACE::ops

namespace KVPOLICY_NAMESPACE::detail {

/// The committed entries of a lane.
[[nodiscard]] KVPOLICY_HD constexpr lane_entries entries_of_lane(lanes const& batch, lane one) {
  return {one, batch.committed(one), 0, batch.position.row(one), batch.order_of(one)};
}

}  // namespace KVPOLICY_NAMESPACE::detail
