// SPDX-License-Identifier: Apache-2.0
// Verb: computes a quadratic form of each entry's key.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/query_view.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `quadratic_form(exec, keys, square, combine, out)`: out[e] = combine(out[e], k_e^T S k_e), with a matrix S for each
/// lane.
///
/// - in: `keys` of `out.lanes`; `square`, D rows of D channels for each KV head, such as a covariance of queries (see
///   `one_of_group`). S need not be symmetric: that of S and its transpose is the same form. `combine` as for
///   `row_norm`.
/// - out: float32 [lanes, entries]. On the host the numbers S_ij and S_ji of two blocks of channels are added before
///   they are multiplied.
/// - NaN: a NaN in a key stays; one in S is in every form of its lane.
/// - range: sums are in single precision. A form of a covariance that is nearly singular may be less than 0 by
/// rounding.
/// - cost: O(entries * D^2) per lane, a little more than half of all products. Reads every key once. Scratch per
/// worker:
///   D rows of D floats, where D is rounded up to a multiple of 32, and 24 rows of D + 32 floats. A device takes none.
/// - throws: `invalid_argument` if sizes differ, or if a segment of the scores is not one lane. On the host, an
///   exception of `combine` is passed on; then `out` is as `map` leaves scores.
/// - source: Expected Attention (arXiv:2510.00636), whose logits have the variance k^T S k.
struct quadratic_form_t : verb<quadratic_form_t> {
  static constexpr auto name = "quadratic_form";
  template <class Combine>
  static void check(keys const& from, query_view const& square, Combine const&, score_view const& out) {
    detail::check_readable("quadratic_form", "keys", from.rows.element);
    detail::check_scales("quadratic_form", "keys", from.rows);
    detail::check_readable("quadratic_form", "square", square.element);
    detail::check_not_fp8("quadratic_form", "square", square.element);
    expects(square.base != nullptr, "quadratic_form", "square", "null", "each lane has a matrix");
    expects(square.dims == from.rows.channels && square.rows == square.dims, "quadratic_form", "square.rows",
            square.rows, [&] { return "keys have " + std::to_string(from.rows.channels) + " channels"; });
    expects(square.heads == out.lanes.heads, "quadratic_form", "square.heads", square.heads,
            [&] { return "there are " + std::to_string(out.lanes.heads) + " KV heads, and each has a matrix"; });
    expects(out.decides == granularity::lane, "quadratic_form", "out.decides", static_cast<int>(out.decides),
            "keys belong to lanes");
  }
};
inline constexpr quadratic_form_t quadratic_form{};

}  // namespace KVPOLICY_NAMESPACE::ops
