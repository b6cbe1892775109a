// SPDX-License-Identifier: Apache-2.0
// Decisions in two steps: the best entries are put first by one score, and the other places are filled by another one.
#pragma once

#include <kvpolicy/core/first_places.hpp>
#include <kvpolicy/decision/rule.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/top_k.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// How many entries of each lane a scorer has counted, of which no more are put first; null: it has not.
template <class Rest>
by_lane<float> counts_of([[maybe_unused]] Rest const& rest) {
  if constexpr (requires { rest.counts; }) return rest.counts;
  return {};
}

/// The rule by which entries are put first: a decision's rule whose budget is that of the forced entries and of those.
template <class Rule>
struct first_rule {
  Rule rule;
  lanes batch;
  first_places first;
  by_lane<float> counts;

  static constexpr bool constrains_hooks = true;

  [[nodiscard]] KVPOLICY_HD int budget(lane this_lane, int count) const {
    int const allowed = rule.budget(this_lane, count);
    int const forced = forced_in({this_lane, count, allowed, batch.position.row(this_lane)});
    int const wanted = first.of(allowed, forced, rule.average(this_lane, count));
    if (counts.data == nullptr) return forced + wanted;
    int const most = static_cast<int>(*counts.row(this_lane));
    return forced + (most < wanted ? most : wanted);
  }
  [[nodiscard]] KVPOLICY_HD static bool triggers(int, int) { return true; }
  [[nodiscard]] KVPOLICY_HD bool forces(entry at) const {
    at.budget = rule.budget(at.lane, at.count);
    return rule.forces(at);
  }
  [[nodiscard]] KVPOLICY_HD ordinal_range candidates(lane_entries of) const
    requires requires(Rule const& r, lane_entries const& all) { r.candidates(all); }
  {
    of.budget = rule.budget(of.lane, of.count);
    return rule.candidates(of);
  }

 private:
  [[nodiscard]] KVPOLICY_HD int forced_in(lane_entries const& of) const {
    if constexpr (requires { rule.candidates(of); }) {
      ordinal_range const free = rule.candidates(of);
      int const begin = free.begin > 0 ? free.begin : 0;
      int const end = free.end < of.count ? free.end : of.count;
      return of.count - (end > begin ? end - begin : 0);
    } else {
      int forced = 0;
      for (int e = 0; e < of.count; ++e) {
        forced += rule.forces(entry{of.lane, e, of.count, of.position[e], of.budget}) ? 1 : 0;
      }
      return forced;
    }
  }
};

/// +inf for the entries that a keep set lists, and a function's value for the others.
template <class Rest>
struct first_or_rest {
  /// A constant, because device code may not call `infinity`.
  static constexpr float before_all = std::numeric_limits<float>::infinity();
  keep_set first;
  Rest rest;

  KVPOLICY_HD float operator()(float old, entry at) const {
    int const segment = segment_of(first.lanes, first.decides, first.lanes.index(at.lane));
    std::int64_t begin = first.indptr[segment];
    std::int64_t end = first.indptr[segment + 1];
    while (begin < end) {
      std::int64_t const middle = begin + (end - begin) / 2;
      if (first.indices[middle] == at.ordinal) return before_all;
      (first.indices[middle] < at.ordinal ? begin : end) = first.indices[middle] < at.ordinal ? middle + 1 : middle;
    }
    return rest(old, at);
  }
};
template <class Rest>
first_or_rest(keep_set, Rest) -> first_or_rest<Rest>;

/// The function of an entry by which those are ranked that are not put first. It may read what `score` has left in
/// spare rows of the plan.
template <class Score, class SignalSet>
auto rest_scores_of(Score const& score, SignalSet const& in, score_view const& scores) {
  if constexpr (requires { score.rest_scores(in, scores); }) {
    return score.rest_scores(in, scores);
  } else {
    return score.rest_scores(in);
  }
}

/// Replaces scores by +inf for the entries that are put first, and by the scores of the rest. `keep` is overwritten.
template <class Executor, class Score, class SignalSet, class Rule>
void put_first(Executor& exec, Score const& score, SignalSet const& in, Rule const& rule, score_view const& scores,
               keep_set const& keep) {
  auto const rest = rest_scores_of(score, in, scores);
  ops::top_k(exec, scores, first_rule<Rule>{rule, scores.lanes, score.places(), counts_of(rest)}, keep);
  ops::map(exec, scores, first_or_rest{keep, rest});
}

}  // namespace KVPOLICY_NAMESPACE::detail
