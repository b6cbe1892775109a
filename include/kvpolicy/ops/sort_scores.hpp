// SPDX-License-Identifier: Apache-2.0
// Verb: sorts the scores of each segment.
#pragma once

#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE::ops {

/// `sort_scores(exec, scores)`: puts the scores of each segment in descending order. Which entry had which score is
/// then lost: place r of a row has the score of rank r.
///
/// - in, out: `scores` [segments, entries], float32. NaN stands behind every number, -0 equals +0.
/// - cost: O(n log n) for a segment of n entries on the host, and a bitonic network of O(n log^2 n) comparisons in a
///   block of threads on a device; no scratch.
/// - source: KVCompose, which compares the scores of equal ranks.
struct sort_scores_t : verb<sort_scores_t> {
  static constexpr auto name = "sort_scores";
  static constexpr void check(score_view const&) {}
};
inline constexpr sort_scores_t sort_scores{};

}  // namespace KVPOLICY_NAMESPACE::ops
