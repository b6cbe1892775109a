// SPDX-License-Identifier: Apache-2.0
// The forced entries of a segment, the keys of its scores, in which they are marked, and the ordinals of what is kept.
#pragma once

#include <bit>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/radix_key.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The score of a key, which must not be that of a NaN.
[[nodiscard]] inline float score_of_key(std::uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000u) != 0 ? key & 0x7FFFFFFFu : ~key);
}

/// A cut of keys: it keeps those above `lowest`, and the first `ties` of those equal to it.
struct cut {
  std::uint32_t lowest = 0;
  std::int64_t ties = 0;
};

/// A rule that can list its forced entries, so that it need not be asked about each entry.
template <class Rule>
concept visits_forced =
    requires(Rule const& rule, lane_entries const& of, ordinal_visitor visit) { rule.visit_forced(of, visit); };

/// Calls visit(ordinal) for each entry of a lane that a rule forces, perhaps more than once.
template <class Rule, class Visit>
void visit_forced_of(score_view const& scores, Rule const& rule, lane_entries const& of, Visit const& visit) {
  if constexpr (visits_forced<Rule>) {
    if (scores.lanes.order_of(of.lane).ascends()) return rule.visit_forced(of, visit);
  }
  for (int e = 0; e < of.count; ++e) {
    if (rule.forces(entry{of.lane, e, of.count, of.position[e], of.budget})) visit(e);
  }
}

/// Writes the keys of a segment's entries, in which forced ones are marked, and returns the number of forced entries.
/// `found` counts the others whose score is NaN.
template <class Rule>
int make_keys(score_view const& scores, Rule const& rule, int segment, int budget, std::uint32_t* keys, report& found) {
  lane const this_lane = scores.lane_of(segment);
  int const count = scores.lanes.committed(this_lane);
  int const* const position = scores.lanes.position.row(this_lane);
  float const* const score = scores.row(segment);
  int nan = 0;
  for (int e = 0; e < count; ++e) {
    keys[e] = radix_key(score[e]);
    nan += keys[e] == nan_key ? 1 : 0;
  }
  int forced = 0;
  int forced_nan = 0;
  auto const mark = [&](int e) {
    if (keys[e] == forced_key) return;
    forced_nan += keys[e] == nan_key ? 1 : 0;
    keys[e] = forced_key;
    ++forced;
  };
  visit_forced_of(scores, rule, {this_lane, count, budget, position}, mark);
  found.nan_scores += nan - forced_nan;
  return forced;
}

/// Writes the ordinals, from `first` on, of the forced keys, of those above a cut, and of the first `at.ties` at it. It
/// returns their number, and reduces `at.ties` by those that it wrote. Each is written after its key, or in its place.
inline int emit_above(std::uint32_t const* keys, int count, cut& at, int* to, int first = 0) {
  int kept = 0;
  for (int e = 0; e < count; ++e) {
    bool const above = keys[e] == forced_key || keys[e] > at.lowest;
    bool const tied = !above && keys[e] == at.lowest && at.ties > 0;
    at.ties -= tied ? 1 : 0;
    if (above || tied) to[kept++] = first + e;
  }
  return kept;
}

}  // namespace KVPOLICY_NAMESPACE::detail
