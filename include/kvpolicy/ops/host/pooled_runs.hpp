// SPDX-License-Identifier: Apache-2.0
// top_k on the host where segments share a budget, and the candidates of each segment are one range.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/segment_runs.hpp>
#include <kvpolicy/ops/host/select_pool.hpp>
#include <kvpolicy/ops/top_k.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// `rows` segments from `first` on, which share the sum of their budgets.
template <class Rule>
struct pooled_runs {
  score_view const& scores;
  Rule const& rule;
  keep_set const& keep;
  int first;
  int rows;

  [[nodiscard]] ordinal_range free(int segment) const {
    int const count = keep.entry_count[segment];
    return candidates_of(scores, rule, segment, count, rule.budget(scores.lane_of(segment), count));
  }

  [[nodiscard]] static candidate_row row(void const* of, int which) {
    auto const& mine = *static_cast<pooled_runs const*>(of);
    int const segment = mine.first + which;
    ordinal_range const free = mine.free(segment);
    return {mine.scores.row(segment) + free.begin, free.end - free.begin,
            reinterpret_cast<std::uint32_t*>(ordinals_of(mine.scores, segment, mine.keep))};
  }

  /// Decides, if the cut is a number and gives each segment its floor; `budget` is shared. Then floors change nothing:
  /// the best of a segment are among those kept, and the rest of the budget went to the best of the others.
  template <class Floor>
  [[nodiscard]] bool decide(host_executor& exec, std::int64_t budget, Floor const& floor, report& found) const {
    std::int64_t candidates = 0;
    std::int64_t forced = 0;
    for (int segment = first; segment < first + rows; ++segment) {
      ordinal_range const mine = free(segment);
      candidates += mine.end - mine.begin;
      forced += keep.entry_count[segment] - (mine.end - mine.begin);
    }
    std::int64_t const k = budget - forced;
    if (k <= 0 || k >= candidates) return false;
    std::int64_t* const ties = keep.indptr + first + 1;
    found_cut const cut = find_cut_of_pool(exec, candidate_rows{this, &pooled_runs::row, rows}, candidates, k, ties);
    if (!cut.found) return false;
    std::int64_t left = cut.at.ties;
    for (int which = 0; which < rows; ++which) left -= ties[which] = std::min(ties[which], left);
    exec.for_each(rows, [&](int which, int) { ties[which] = emit(exec, first + which, cut.at, ties[which]); });
    for (int segment = first; segment < first + rows; ++segment) {
      if (keep.indptr[segment + 1] < std::min(keep.entry_count[segment], floor(segment))) return false;
    }
    found.nan_scores += cut.nan;
    return true;
  }

 private:
  /// Writes the kept ordinals of a segment, and returns their number.
  [[nodiscard]] std::int64_t emit(host_executor const& exec, int segment, cut const& at, std::int64_t ties) const {
    ordinal_range const mine = free(segment);
    int* const to = ordinals_of(scores, segment, keep);
    int* next = list_range({0, mine.begin}, to);
    row_prefetcher nothing(scores.row(segment), 0);
    next += select_of_isa[exec.simd_level()].emit(
        scores.row(segment) + mine.begin, mine.end - mine.begin, mine.begin,
        {score_of_key(at.lowest), static_cast<int>(ties), mine.end - mine.begin}, next, nothing);
    return list_range({mine.end, keep.entry_count[segment]}, next) - to;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
