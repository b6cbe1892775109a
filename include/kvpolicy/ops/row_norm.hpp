// SPDX-License-Identifier: Apache-2.0
// Verb: computes the Euclidean norm of each entry's key or value.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// A function for `combine`: returns the new value.
struct replaced {
  KVPOLICY_HD float operator()(float, float now) const { return now; }
};

/// A function for `combine`: returns the new value, negated.
struct negated {
  KVPOLICY_HD float operator()(float, float now) const { return -now; }
};

/// A function for `combine`: returns the product of the old and the new value.
struct multiplied {
  KVPOLICY_HD float operator()(float old, float now) const { return old * now; }
};

/// A function for `combine`: returns the sum of the old and the new value.
struct added {
  KVPOLICY_HD float operator()(float old, float now) const { return old + now; }
};

namespace detail {

/// A function for `combine`: returns the new value negated, unless an old one was recorded.
struct negated_once {
  KVPOLICY_HD float operator()(float old, float now) const { return any_recorded(&old, 1) ? old : -now; }
};

}  // namespace detail

namespace ops {

/// `row_norm(exec, rows, combine, out)`: out[e] = combine(out[e], ||row e||).
///
/// - in: `rows`, keys or values; `combine`, a struct with a KVPOLICY_HD `float operator()(float old, float norm)
///   const`.
/// - out: float32 [lanes, entries]. Rows of 1e30 do not overflow. On the host, f32 rows are accumulated in double; f16
///   and bf16 rows have exact squares, 64 partial sums of them in float, and sums of four of these added in double. All
///   instruction sets and layouts give the same bits. A device accumulates in double.
/// - cost: reads every row once; no scratch.
/// - throws: `invalid_argument` if a segment of the scores is not one lane. On the host, an exception of `combine` is
///   passed on; then `out` is as `map` leaves scores.
struct row_norm_t : verb<row_norm_t> {
  static constexpr auto name = "row_norm";
  template <class Combine>
  static void check(row_view const& from, Combine const&, score_view const& out) {
    detail::check_readable("row_norm", "rows", from.rows.element);
    detail::check_scales("row_norm", "rows", from.rows);
    expects(out.decides == granularity::lane, "row_norm", "out.decides", static_cast<int>(out.decides),
            "rows belong to lanes");
  }
};
inline constexpr row_norm_t row_norm{};

/// `record_norms(exec, rows, out)`: out[e] = -||row e|| for the entries at the end of each lane that have no number
/// yet, which is +0. A norm of 0 is recorded as -0.
///
/// - in: `rows`, keys or values. in, out: float32 [lanes, entries].
/// - cost: on the host, reads the rows of these entries once; on a device, every row.
/// - throws: as `row_norm`.
struct record_norms_t : verb<record_norms_t> {
  static constexpr auto name = "record_norms";
  static void check(row_view const& from, score_view const& out) { row_norm_t::check(from, 0, out); }
};
inline constexpr record_norms_t record_norms{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
