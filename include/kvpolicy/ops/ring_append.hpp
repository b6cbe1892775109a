// SPDX-License-Identifier: Apache-2.0
// Verbs: append query rows to a ring of the most recent rows, and truncate the ring.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// A ring of query rows for each lane: floats [group][capacity][dims], positions [capacity], and a cursor {first,
/// valid}.
struct query_ring_view {
  int capacity = 0;
  int group = 1;
  int dims = 0;
  by_lane<float> rows{};
  by_lane<int> position{};
  by_lane<int> cursor{};
};

namespace ops {

/// `ring_append(exec, lanes, from, ring)`: the rows of `from` become the newest rows of every lane's ring.
///
/// - in: `from`, the query rows of this forward pass, with ascending positions. Rows at positions after the
///   newest committed token are not appended.
/// - out: `ring`, float32. Rows at or after the first new position are removed first, so that a token that was rolled
///   back leaves no row.
/// - throws: `invalid_argument` if head sizes differ.
struct ring_append_t : verb<ring_append_t> {
  static void check(lanes const&, query_view const& from, query_ring_view const& ring) {
    expects(from.dims == ring.dims, "ring_append", "queries.dims", from.dims, "a ring keeps rows of one head size");
  }
};
inline constexpr ring_append_t ring_append{};

/// `ring_truncate(exec, lanes, ring, sequence, position)`: removes the rows of one sequence at `position` and later.
struct ring_truncate_t : verb<ring_truncate_t> {
  static constexpr void check(lanes const&, query_ring_view const&, int, int) {}
};
inline constexpr ring_truncate_t ring_truncate{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
