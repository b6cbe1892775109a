// SPDX-License-Identifier: Apache-2.0
// Query rows, and the signals that are made of them.
#pragma once

#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signal_rows.hpp>

namespace KVPOLICY_NAMESPACE {

/// One float for each query row: [sequence, layer, query head, stored row]. Strides are in floats, rows are
/// contiguous.
struct row_floats {
  float const* data = nullptr;
  std::int64_t sequence = 0;  ///< strides in floats
  std::int64_t layer = 0;
  std::int64_t head = 0;  ///< between query heads
  [[nodiscard]] KVPOLICY_HD float at(lane this_lane, int query_head, int stored_row) const {
    return data[this_lane.sequence * sequence + this_lane.layer * layer + query_head * head + stored_row];
  }
};

/// Query rows [sequence, layer, query head, row, channel], after RoPE, with the position of each row. `queries_of`
/// describes the usual tensors. Sequences may have different numbers of rows (`valid_rows`), and the rows of a lane may
/// be a ring (`first_row`).
struct query_view {
  std::byte const* base = nullptr;
  codec element = codec::f32;
  int dims = 0;               ///< channels of a row; channels are contiguous
  std::int64_t sequence = 0;  ///< strides in bytes
  std::int64_t layer = 0;
  std::int64_t head = 0;  ///< between query heads
  std::int64_t row = 0;
  int heads = 0;                    ///< number of query heads
  int rows = 0;                     ///< maximum number of rows of a lane
  by_lane<int const> position{};    ///< for each lane the position of each stored query row; null is allowed only in a
                                    ///< direct call of a verb and means that every row sees every entry. A row at a
                                    ///< negative position does not count: see `observe`
  by_lane<int const> valid_rows{};  ///< the number of valid rows of each lane, at most `rows`, if sequences bring
                                    ///< different numbers of rows; null: all `rows` rows are valid
  by_lane<int const> first_row{};  ///< of a ring: the stored row of each lane's oldest row. Row r is then stored in row
                                   ///< (first + r) mod `rows`; null: row r is stored in row r
  row_floats lse{};                ///< log-sum-exp of each row's logits, scaled and capped, over the keys that it sees
                                   ///< and the sink, if the engine's attention has it; null data: it is computed
  by_lane<int const> counted{};  ///< the indices of the `valid_rows` rows that count, ascending; null: all of them. It
                                 ///< must be null in a ring
  int const* slots = nullptr;    ///< the place of each sequence along axis `sequence`; null: sequence s has place s

  /// The number of valid rows of a lane.
  [[nodiscard]] KVPOLICY_HD int valid(lane this_lane) const {
    return valid_rows.data != nullptr ? *valid_rows.row(this_lane) : rows;
  }
  /// The stored row of row r.
  [[nodiscard]] KVPOLICY_HD int stored(lane this_lane, int r) const {
    if (counted.data != nullptr) return counted.row(this_lane)[r];
    return first_row.data != nullptr ? (*first_row.row(this_lane) + r) % rows : r;
  }
  [[nodiscard]] KVPOLICY_HD std::byte const* at(lane this_lane, int query_head, int stored_row) const {
    return base + slot_of(slots, this_lane.sequence) * sequence + this_lane.layer * layer + query_head * head +
           stored_row * row;
  }

  /// True if any row of a lane sees any of its committed entries. Rows at positions after the newest committed token do
  /// not count.
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& batch, lane this_lane) const {
    int const entries = batch.committed(this_lane);
    int r = valid(this_lane) - 1;
    if (r < 0 || position.data == nullptr || entries <= 0) return r >= 0;
    int const* const at = batch.position.row(this_lane);
    lane_order const order = batch.order_of(this_lane);
    int const newest = batch.newest(this_lane);
    while (r >= 0 && position.row(this_lane)[stored(this_lane, r)] > newest) --r;
    int e = 0;  // where entries are out of order, the first one need not be the oldest
    while (r >= 0 && !order.ascends() && e < entries - 1 && position.row(this_lane)[stored(this_lane, r)] < at[e]) ++e;
    return r >= 0 && position.row(this_lane)[stored(this_lane, r)] >= at[e];
  }

  void check(char const* call, shape const& model) const {
    detail::check_rows_given(call, "queries", *this, model);
    expects(dims == model.head_dim, call, "queries.dims", dims,
            [&] { return "the shape says " + std::to_string(model.head_dim) + " channels"; });
  }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_row_strides(call, "queries", *this, batch);
  }
  /// Refuses numbers of valid rows that are out of range, and positions that do not ascend. It reads them, so it is
  /// called only if the host can read the executor's memory.
  void check_rows(char const* call, lanes const& batch) const {
    detail::check_row_positions(call, "queries", *this, batch);
  }
};

/// Signal: the query rows of the current forward, one for each new entry.
struct queries : query_view {
  static constexpr auto name = "queries";
  /// Also refuses rows that are older than the lane's newest entry: they were observed before.
  void check_rows(char const* call, lanes const& batch) const {
    detail::check_row_positions(call, name, *this, batch, true);
  }
};

/// Signal: the last query rows of the sequence, which `query_ring` records unless the engine gives them.
struct recent_queries : query_view {
  static constexpr auto name = "recent_queries";
};

/// Signal: the query rows of a turn, and which of them are its actionable span: the rows of the latest message that can
/// affect the answer. An engine that has only the span's rows gives those, and gives no rows if no entry of the span is
/// left in the cache.
struct turn_queries : query_view {
  static constexpr auto name = "turn_queries";
  int const* span_begin = nullptr;  ///< for each sequence: logical rows [begin, end) are the span. If either pointer is
  int const* span_end = nullptr;    ///< null or begin >= end, the span is unknown, and the last rows are used instead
  /// The span's logical rows in a lane. If the span is unknown, these are the last `tail` rows.
  [[nodiscard]] KVPOLICY_HD ordinal_range span(lane this_lane, int tail) const {
    int const all = valid(this_lane);
    if (span_begin == nullptr || span_end == nullptr ||
        span_begin[this_lane.sequence] >= span_end[this_lane.sequence]) {
      return {all > tail ? all - tail : 0, all};
    }
    int const begin = counted_before(this_lane, span_begin[this_lane.sequence]);
    int const end = counted_before(this_lane, span_end[this_lane.sequence]);
    return {begin > 0 ? begin : 0, end < all ? end : all};  // a span that is not within the rows is refused elsewhere
  }
  /// How many of the first `many` rows of a lane count.
  [[nodiscard]] KVPOLICY_HD int counted_before(lane this_lane, int many) const {
    if (counted.data == nullptr) return many;
    int const* const index = counted.row(this_lane);
    int before = 0;
    while (before < valid(this_lane) && index[before] < many) ++before;
    return before;
  }
  /// The number of rows that a span may refer to, whether they count or not.
  [[nodiscard]] KVPOLICY_HD int span_limit(lane this_lane) const {
    return counted.data != nullptr ? rows : valid(this_lane);
  }
  /// The position of a logical row.
  [[nodiscard]] KVPOLICY_HD int position_of(lane this_lane, int r) const {
    return position.row(this_lane)[stored(this_lane, r)];
  }
};

#if defined(KVPOLICY_COMPILED)
extern template void detail::check_rows_given(char const*, char const*, query_view const&, shape const&);
extern template void detail::check_row_strides(char const*, char const*, query_view const&, lanes const&);
extern template void detail::check_row_positions(char const*, char const*, query_view const&, lanes const&, bool);
extern template void detail::check_row_positions(char const*, char const*, queries const&, lanes const&, bool);
#endif

}  // namespace KVPOLICY_NAMESPACE
