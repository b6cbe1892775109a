// Verb: scores of lanes that decide apart become scores of lanes that decide together.
#pragma once

#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// Which part of a fold a call is: the first one overwrites, the last one divides a mean by the number of rows.
struct fold_step {
  reduction how = reduction::sum;
  bool first = true;
  int divide_by = 1;
};

/// `fold(exec, part, step, out)`: out[e] = out[e] combined with every row of `part` whose lanes `out` decides for.
///
/// - in: `part` [segments, entries], finer than `out`; in, out: `out`. Rows are combined in the order of their lanes.
/// - NaN: every reduction passes NaN on.
/// - cost: reads `part` once; no scratch.
/// - throws: `invalid_argument` if rows are reduced by `last`: lanes have no order.
struct fold_t : verb<fold_t> {
  static constexpr auto name = "fold";
  static void check(score_view const&, fold_step const& step, score_view const&) {
    expects(step.how != reduction::last, "fold", "how", "last", "lanes have no order");
  }
};
inline constexpr fold_t fold{};

}  // namespace KVPOLICY_NAMESPACE::ops
