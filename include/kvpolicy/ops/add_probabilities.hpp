// SPDX-License-Identifier: Apache-2.0
// Verb: adds the attention probabilities of a forward to the mass of each entry.
#pragma once

#include <kvpolicy/core/attention_probabilities.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `add_probabilities(exec, lanes, probabilities, group, mass)`: mass[e] += the probabilities that entry e of a lane
/// received from all valid rows up to the newest committed token, summed over rows and then reduced over the query
/// heads of its KV head.
///
/// - in: `probabilities` [sequence, layer, query head, row, entry] of any readable element type. Each row has a number
///   for every committed entry. `group` is `sum`, `mean` or `max`.
/// - in, out: `mass`, float32, one number for each entry of a lane.
/// - range: sums are taken in float32, head by head and row by row. A NaN makes its entry NaN.
/// - cost: reads each probability once: O(group * rows * entries) per lane; no scratch.
/// - throws: `invalid_argument` if query heads are not a multiple of the KV heads, if a row is shorter than `capacity`
///   needs (on the host: than the lane's entries), or if `group` is `last`. Then nothing was changed.
struct add_probabilities_t : verb<add_probabilities_t> {
  static constexpr auto name = "add_probabilities";
  template <executor Executor>
  void operator()(Executor& exec, lanes const& batch, attention_probabilities const& from, reduction group,
                  by_lane<float> const& mass) const {
    verb<add_probabilities_t>::operator()(exec, batch, from, group, mass);
  }

  static void check(lanes const& batch, attention_probabilities const& from, reduction group, by_lane<float> const&) {
    detail::check_readable(name, "probabilities", from.element);
    detail::check_not_fp8(name, "probabilities", from.element);
    expects(from.rows >= 0, name, "probabilities.rows", from.rows, "a count cannot be negative");
    expects(from.rows == 0 || (from.heads > 0 && from.heads % batch.heads == 0), name, "probabilities.heads",
            from.heads, "query heads are shared out evenly among KV heads");
    expects(group != reduction::last, name, "group", "last", "query heads have no order");
  }
};
inline constexpr add_probabilities_t add_probabilities{};

}  // namespace KVPOLICY_NAMESPACE::ops
