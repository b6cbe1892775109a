// Verb: what a turn's query rows leave in a session's memory.
#pragma once

#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// How a memory takes a turn up.
struct query_memory_update {
  float keep = 0;          ///< what the memory so far is multiplied by, 0 to 1
  bool normalise = false;  ///< the mean of the rows becomes a unit vector before it is added
  int tail = 32;           ///< rows of a span that could not be told
};

namespace ops {

/// `update_query_memory(exec, lanes, turn, how, memory)`: M = unit(keep M + mean of the span's rows), for each query
/// head.
///
/// - in: `turn`, query rows, of which the span counts. A sequence without rows is left as it is.
/// - in, out: `memory`, float32, a row of [group][D] for every lane. A vector of zeros stays one.
/// - cost: O(group * span * D) a lane. Sums run in double precision. Scratch of a worker: 12 D bytes.
/// - throws: `invalid_argument` if a span is not within the rows, or `keep` or `tail` is out of range. Then nothing was
///   changed.
struct update_query_memory_t : verb<update_query_memory_t> {
  static constexpr auto name = "update_query_memory";
  static void check(lanes const&, turn_queries const&, query_memory_update const& how, by_lane<float> const&) {
    expects(how.keep >= 0 && how.keep <= 1, "update_query_memory", "keep", how.keep, "a memory fades, 0 to 1");
    expects(how.tail >= 1, "update_query_memory", "tail", how.tail, "at least one row stands for the span");
  }
};
inline constexpr update_query_memory_t update_query_memory{};

/// `refuse_spans(exec, lanes, turn, call)`: throws `invalid_argument`, as of that call, if a span is not within the
/// rows of its sequence.
struct refuse_spans_t : verb<refuse_spans_t> {
  static constexpr void check(lanes const&, turn_queries const&, char const*) {}
};
inline constexpr refuse_spans_t refuse_spans{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
