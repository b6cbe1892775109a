// SPDX-License-Identifier: Apache-2.0
// Verb: computes the most attention that each entry receives from the query rows that are about it.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/row_spans.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// The entries before a chunk that its rows see, and what a row's probabilities are divided by.
struct span_attention_options {
  int sinks = 0;                     ///< so many of a lane's first entries, as far as they are before the chunk
  by_lane<float const> divide_by{};  ///< for each stored row a number above 0; null: 1
};

namespace ops {

/// `span_attention(exec, keys, rows, spans, options, out)`: out[e] is the highest probability that any row about entry
/// e gives to it, divided by the row's number where there are such. Rows of equal spans [begin, end) that stand
/// together are a chunk, and a row of it sees, whatever its position,
///
/// - the first min(sinks, begin) entries of the lane and the entries [begin, end);
/// - of the chunk's own rows the keys of those up to itself, if `spans.keys` has rows.
///
/// The maximum is over the rows of a chunk, the query heads of the lane's group, and chunks that share an entry. A
/// scale, a soft cap and sink logits are those of `keys.logits`.
///
/// - in: `keys` of `out.lanes`; `rows`, post-RoPE queries, whose positions and log-sum-exps are not read; `spans` of
///   entries: what is not in the lane is left out, and a span without entries is about nothing.
/// - out: float32 [lanes, entries]. An entry that no row is about gets 0.
/// - range, NaN: as for `compute_attention_mass`. A NaN that a row sees makes the entries of its chunk NaN.
/// - cost: O(group * rows * (sinks + entries of the chunk + its rows / 2) * D) per lane. A pass over a chunk's keys
///   serves 128 rows, or 32 where the chunk is longer than 4,096 entries; a device makes two passes for each 32 rows.
///   Scratch per worker: 32 floats per entry, at least 128 for each of 480 to 4,096 entries, 386 rows of D floats,
///   where D is rounded up to a multiple of 32, and 32 KiB. A device needs none.
/// - throws: `invalid_argument` if head sizes differ, if a segment of the scores is not one lane, if a count is
///   negative, if spans or keys of rows do not fit the rows, and what `compute_attention_mass` says of `keys.logits`.
/// - source: KVzip (Kim et al. 2025, arXiv:2505.23416), whose rows repeat the entries of their chunk.
struct span_attention_t : verb<span_attention_t> {
  static constexpr auto name = "span_attention";
  template <executor Executor>
  void operator()(Executor& exec, keys const& from, query_view const& rows, row_spans const& spans,
                  span_attention_options const& how, score_view const& out) const {
    // Parameters have types here, so that callers may write options in braces.
    verb<span_attention_t>::operator()(exec, from, rows, spans, how, out);
  }

  static void check(keys const& from, query_view const& rows, row_spans const& spans, span_attention_options const& how,
                    score_view const& out) {
    detail::check_readable(name, "keys", from.rows.element);
    detail::check_logits(name, "keys.logits", from.logits, out.lanes);
    detail::check_scales(name, "keys", from.rows);
    detail::check_readable(name, "queries", rows.element);
    detail::check_not_fp8(name, "queries", rows.element);
    expects(from.rows.channels == rows.dims, name, "queries.dims", rows.dims, "keys and queries have one head size");
    expects(rows.rows >= 0, name, "queries.rows", rows.rows, "a count cannot be negative");
    expects(rows.rows == 0 || (rows.heads > 0 && rows.heads % out.lanes.heads == 0), name, "queries.heads", rows.heads,
            "query heads are shared out evenly among KV heads");
    expects(rows.counted.data == nullptr || spans.keys.rows == 0, name, "queries.counted", "a list",
            "keys of rows stand where the rows do");
    if (rows.rows > 0) spans.check(name, "spans", rows, out.lanes.heads);
    expects(how.sinks >= 0, name, "sinks", how.sinks, "a count cannot be negative");
    expects(out.decides == granularity::lane, name, "out.decides", static_cast<int>(out.decides),
            "keys belong to lanes");
  }
};
inline constexpr span_attention_t span_attention{};

}  // namespace ops

namespace detail {

/// The keys of rows as the keys of a lane: those of logical row r are at ordinal r.
[[nodiscard]] inline row_view keys_of_rows(query_view const& rows, row_spans const& spans) {
  row_view made;
  query_view const& from = spans.keys;
  if (from.rows == 0) return made;
  made.rows.base = const_cast<std::byte*>(from.base);  // a verb only reads it
  made.rows.element = from.element;
  made.rows.channels = from.dims;
  made.rows.layer_stride = from.layer;
  made.rows.unit_stride = from.sequence;
  made.rows.token_stride = from.row;
  made.rows.head_stride = from.head;
  made.rows.channel_stride = bytes_of(from.element);
  made.where = identity_map(from.rows);
  made.where.slots = from.slots;
  if (rows.first_row.data == nullptr) return made;
  made.where.kind = locating::ring;
  made.where.table = rows.first_row;
  return made;
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
