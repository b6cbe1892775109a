// SPDX-License-Identifier: Apache-2.0
// Verbs: update a session's query memory from the query rows of a turn, and check spans.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// Options of an update.
struct query_memory_update {
  float keep = 0;          ///< factor of the old memory, 0 to 1
  bool normalise = false;  ///< the mean of the rows is scaled to a unit vector before it is added
  int tail = 32;           ///< how many of the last rows stand for an unknown span
};

namespace ops {

/// `update_query_memory(exec, lanes, turn, how, memory)`: M = unit(keep M + mean of the span's rows), for each query
/// head.
///
/// - in: `turn`, query rows; only those of the span are used. A sequence without such rows keeps its memory.
/// - in, out: `memory`, float32, a row of [group][D] for every lane. A vector of zeros stays zero.
/// - cost: O(group * span * D) per lane. Sums are in double precision, in the order of the rows. On the host, 16-bit
///   numbers of sixteen rows are added in float first; all of its instruction sets give the same bits. Scratch per
///   worker: 12 D bytes.
/// - throws: `invalid_argument` if a span is not within the rows, or if `keep` or `tail` is out of range. Then nothing
///   was changed.
struct update_query_memory_t : verb<update_query_memory_t> {
  static constexpr auto name = "update_query_memory";
  static void check(lanes const&, turn_queries const&, query_memory_update const& how, by_lane<float> const&) {
    expects(how.keep >= 0 && how.keep <= 1, "update_query_memory", "keep", how.keep, "a memory fades, 0 to 1");
    expects(how.tail >= 1, "update_query_memory", "tail", how.tail, "at least one row stands for the span");
  }
};
inline constexpr update_query_memory_t update_query_memory{};

/// `refuse_spans(exec, lanes, turn, call)`: throws `invalid_argument`, in the name of `call`, if a span is not within
/// the rows of its sequence.
struct refuse_spans_t : verb<refuse_spans_t> {
  static constexpr void check(lanes const&, turn_queries const&, char const*) {}
};
inline constexpr refuse_spans_t refuse_spans{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
