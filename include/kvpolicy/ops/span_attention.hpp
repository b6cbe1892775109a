// SPDX-License-Identifier: Apache-2.0
// Verb: computes the attention that each entry receives from the query rows that are about it.
#pragma once

#include <cmath>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/row_spans.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// Chunks of a lane's own entries, one behind the other: the last one may be shorter.
struct entry_chunks {
  int size = 0;   ///< entries of a chunk; 0: there are none
  int first = 0;  ///< entries of the lane before the first chunk
  int last = 0;   ///< entries behind the last chunk
  /// True: a shorter chunk that has rows is filled up with zeros, which are keys of the logit 0 and rows that see all.
  bool padded = false;

  /// The chunk of an entry; none for the entries before the first chunk and behind the last one.
  [[nodiscard]] KVPOLICY_HD constexpr ordinal_range of(int e, int entries) const {
    int const end = entries - last;
    if (e < first || e >= end) return {};
    int const begin = first + (e - first) / size * size;
    return {begin, end - begin < size ? end : begin + size};
  }
  /// How many entries fill a chunk up.
  [[nodiscard]] KVPOLICY_HD constexpr int missing_in(ordinal_range chunk) const {
    return padded ? size - (chunk.end - chunk.begin) : 0;
  }
};

/// What rows see beside the entries that they are about, and how the probabilities of an entry become one number.
struct span_attention_options {
  int sinks = 0;          ///< so many of a lane's first entries, as far as they are before the chunk
  entry_chunks chunks{};  ///< rows are those of the lane's newest entries, and about the chunks of these; spans and
                          ///< sinks are none then, and an entry gets the sum of its probabilities
  by_lane<float const> divide_by{};  ///< for each stored row a number above 0, by which its probabilities are
                                     ///< divided; null: 1
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
/// scale, a soft cap and sink logits are those of `keys.logits`. With `options.chunks` the rows are those of the
/// entries themselves, and out[e] is the sum over the rows and heads of its chunk: attention without a mask in blocks.
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
///   negative, if spans or keys of rows do not fit the rows, if there are chunks of entries and spans, keys of rows or
///   sinks, and what `compute_attention_mass` says of `keys.logits`.
/// - source: KVzip (Kim et al. 2025, arXiv:2505.23416), whose rows repeat the entries of their chunk; Compactor (chunks
///   of entries).
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
    check_chunks(spans, how);
    expects(out.decides == granularity::lane, name, "out.decides", static_cast<int>(out.decides),
            "keys belong to lanes");
  }

 private:
  static void check_chunks(row_spans const& spans, span_attention_options const& how) {
    expects(how.chunks.size >= 0, name, "chunks.size", how.chunks.size, "a count cannot be negative");
    expects(how.chunks.first >= 0, name, "chunks.first", how.chunks.first, "a count cannot be negative");
    expects(how.chunks.last >= 0, name, "chunks.last", how.chunks.last, "a count cannot be negative");
    if (how.chunks.size == 0) return;
    expects(how.sinks == 0, name, "sinks", how.sinks, "rows about chunks of entries see nothing else");
    expects(spans.begin.data == nullptr && spans.keys.rows == 0, name, "spans", "given",
            "chunks of entries say what rows are about");
    expects(how.divide_by.data == nullptr, name, "divide_by", "given", "rows about chunks of entries are not divided");
  }
};
inline constexpr span_attention_t span_attention{};

}  // namespace ops

namespace detail {

/// What rows are about, by their numbers: the entries of a span, or the chunk of the entry that a row belongs to.
struct row_targets {
  query_view rows;
  row_spans spans;
  entry_chunks chunks;

  [[nodiscard]] KVPOLICY_HD ordinal_range of(lane one, int row, int entries) const {
    if (chunks.size > 0) return chunks.of(entries - rows.valid(one) + row, entries);
    return spans.of(one, rows.stored(one, row), entries);
  }
  /// True if two rows are about the same entries.
  [[nodiscard]] KVPOLICY_HD bool alike(lane this_lane, int one, int other, int entries) const {
    if (chunks.size == 0) return spans.alike(this_lane, rows.stored(this_lane, one), rows.stored(this_lane, other));
    ordinal_range const a = of(this_lane, one, entries), b = of(this_lane, other, entries);
    return a.begin == b.begin && a.end == b.end;
  }
};

/// What each of so many rows of zeros gives to an entry of a chunk that they fill up.
[[nodiscard]] KVPOLICY_HD inline float share_of_padding(int entries, int missing, float sink) {
  return static_cast<float>(missing) / (static_cast<float>(entries + missing) + std::exp(sink));
}

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
