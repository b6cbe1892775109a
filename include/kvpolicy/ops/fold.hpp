// SPDX-License-Identifier: Apache-2.0
// Verb: combines the scores of lanes into scores of segments of several lanes.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// One step of a fold. The first step overwrites the output, and the last step of a mean divides by the number of rows.
struct fold_step {
  reduction how = reduction::sum;
  bool first = true;
  int divide_by = 1;
};

/// `fold(exec, part, step, out)`: combines out[e] with every row of `part` whose lanes belong to the segment of `out`.
///
/// - in: `part` [segments, entries], of a finer granularity than `out`. in, out: `out`. Rows are combined in the order
///   of their lanes.
/// - NaN: every reduction propagates NaN.
/// - cost: reads `part` once; no scratch.
/// - throws: `invalid_argument` if rows are reduced by `last`, because lanes have no order.
struct fold_t : verb<fold_t> {
  static constexpr auto name = "fold";
  static void check(score_view const&, fold_step const& step, score_view const&) {
    expects(step.how != reduction::last, "fold", "how", "last", "lanes have no order");
  }
};
inline constexpr fold_t fold{};

}  // namespace KVPOLICY_NAMESPACE::ops
