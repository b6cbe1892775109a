// SPDX-License-Identifier: Apache-2.0
// Verb: computes the products of each entry's key and a few rows, without a softmax.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <optional>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {

/// The scale of products, and how those of several rows and of a group's query heads become one number.
struct logits_options {
  std::optional<float> scale{};  ///< empty: that of attention, which `keys.logits` names, or 1 / sqrt(D)
  reduction rows = reduction::mean;
  reduction group = reduction::mean;
  reduction_order order = reduction_order::rows_then_group;  ///< the others reduce the group first
  int last_rows = 0;                                         ///< how many of the last rows are used; 0: all
};

/// One row of `dims` floats for each KV head, such as the mean of its keys or a direction of a model's table.
template <class Float>
[[nodiscard]] query_view one_row_a_lane(by_lane<Float> const& rows, int dims, lanes const& batch) {
  static_assert(std::is_same_v<Float const, float const>);
  constexpr auto bytes = static_cast<std::int64_t>(sizeof(float));
  query_view made;
  made.base = reinterpret_cast<std::byte const*>(rows.data);
  made.dims = dims;
  made.sequence = rows.sequence * bytes;
  made.layer = rows.layer * bytes;
  made.head = rows.head * bytes;
  made.slots = rows.slots;
  made.heads = batch.heads;
  made.rows = 1;
  return made;
}

namespace ops {

/// `logits(exec, keys, rows, options, combine, out)`: out[e] = combine(out[e], x), where x is scale * q k, reduced over
/// the query rows of the lane's query heads.
///
/// - in: `keys` of `out.lanes`; `rows`, of which each one meets every entry: positions and log-sum-exps are not read,
/// so
///   rows may be directions of a model's table; `combine`, a struct with a KVPOLICY_HD `float operator()(float old,
///   float logit) const`, such as `replaced`, `negated` or `multiplied`.
/// - out: float32 [lanes, entries]. A lane without a row gets combine(out[e], 0). Neither the soft cap nor the sinks of
///   `keys.logits` apply.
/// - NaN: a NaN in a key or a row stays, in every reduction.
/// - cost: O(group * rows * entries * D) per lane, reading every key once for each 128 rows. Scratch per worker: two
///   floats per entry, 193 rows of D floats, where D is rounded up to a multiple of 32, and 16 KiB.
/// - throws: `invalid_argument` if head sizes differ, if a segment of the scores is not one lane, if the group is
/// reduced
///   by `last`, if a count is negative, or if the scale is not a finite number above 0. On the host, an exception of
///   `combine` is passed on; then `out` is as `map` leaves scores.
/// - source: Q-Filters (rows are directions), KeyDiff (the row is the mean of unit keys).
struct logits_t : verb<logits_t> {
  static constexpr auto name = "logits";
  template <executor Executor, class Combine>
  void operator()(Executor& exec, keys const& from, query_view const& rows, logits_options const& how,
                  Combine const& combine, score_view const& out) const {
    // Parameters have types here, so that callers may write options in braces.
    verb<logits_t>::operator()(exec, from, rows, how, combine, out);
  }

  template <class Combine>
  static void check(keys const& from, query_view const& rows, logits_options const& how, Combine const&,
                    score_view const& out) {
    detail::check_readable("logits", "keys", from.rows.element);
    detail::check_scales("logits", "keys", from.rows);
    detail::check_readable("logits", "queries", rows.element);
    detail::check_not_fp8("logits", "queries", rows.element);
    expects(from.rows.channels == rows.dims, "logits", "queries.dims", rows.dims,
            "keys and queries have one head size");
    expects(rows.rows >= 0, "logits", "queries.rows", rows.rows, "a count cannot be negative");
    expects(rows.rows == 0 || (rows.heads > 0 && rows.heads % out.lanes.heads == 0), "logits", "queries.heads",
            rows.heads, "query heads are shared out evenly among KV heads");
    float const scale = how.scale.value_or(1.0f);
    expects(scale > 0 && scale - scale == 0, "logits", "scale", scale,
            "products are multiplied by a finite number above 0");
    expects(how.last_rows >= 0, "logits", "last_rows", how.last_rows, "a count cannot be negative");
    expects(how.group != reduction::last, "logits", "group", "last", "query heads have no order");
    expects(out.decides == granularity::lane, "logits", "out.decides", static_cast<int>(out.decides),
            "keys belong to lanes");
  }
};
inline constexpr logits_t logits{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
