// SPDX-License-Identifier: Apache-2.0
// Verb: computes an upper bound of q k over the keys of each page.
#pragma once

#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/page_bounds.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `page_scores(exec, lanes, bounds, rows, group, out)`: U(P) = sum over channels of max(q_d high_d, q_d low_d), for
/// the last query row. The query heads of each lane's GQA group are reduced to one number by `group`.
///
/// - in: `lanes`, whose entries are tokens; `bounds` of their pages; `rows`, of which the last valid row of each lane
///   is used. The pages of a lane without a row score 0.
/// - out: float32 [lanes, pages] for the lanes of `out.lanes`, whose `capacity` counts pages. Every page that holds
///   committed entries has a score. There is no factor 1/sqrt(D): U >= q k for every key of the page, except for
///   rounding.
/// - rounding: sums are in float32. If bounds are bf16 and rows are not, a row is represented as the sum of two bf16
///   values. The error of U is less than 2^-15 of the sum of |q_d| max(|high_d|, |low_d|).
/// - NaN: a NaN in a key makes the score of its page NaN, which ranks below every number and is counted. A NaN in a
///   query row does so for all pages of its lane. A page that the bounds do not cover completely scores +inf, so that
///   it is read.
/// - cost: reads the bounds once per eight heads of a group. Scratch per worker: G + 310 rows of 2 D floats.
/// - throws: `invalid_argument` if head sizes differ, or the group is reduced by `last`.
struct page_scores_t : verb<page_scores_t> {
  static void check(lanes const& batch, page_bound_view const& bounds, query_view const& rows, reduction group,
                    score_view const& out) {
    detail::check_page_bounds("page_scores", bounds);
    detail::check_readable("page_scores", "queries", rows.element);
    detail::check_not_fp8("page_scores", "queries", rows.element);
    expects(rows.dims == bounds.dims, "page_scores", "queries.dims", rows.dims,
            [&] { return "the bounds have " + std::to_string(bounds.dims) + " channels"; });
    expects(rows.heads > 0 && rows.heads % batch.heads == 0, "page_scores", "queries.heads", rows.heads,
            "query heads are shared out evenly among KV heads");
    expects(group != reduction::last, "page_scores", "group", "last", "query heads have no order");
    expects(out.decides == granularity::lane, "page_scores", "out", "lanes together", "a page is a lane's own");
    expects(out.lanes.capacity >= detail::pages_for(batch.capacity, bounds.page), "page_scores", "out.lanes.capacity",
            out.lanes.capacity, "every page of a full lane has a score");
  }
};
inline constexpr page_scores_t page_scores{};

}  // namespace KVPOLICY_NAMESPACE::ops
