// Host implementation of select_if.
#pragma once

#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/listed_marks.hpp>
#include <kvpolicy/ops/host/segments.hpp>
#include <kvpolicy/ops/select_if.hpp>
#include <mutex>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::select_if_t, host> {
  static constexpr bool provided = true;

  template <class Rule>
  static void run(host_executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    if (!scores.same_tokens) detail::refuse_other_tokens("select_if", scores);
    detail::unfinished_keep written(keep);
    *keep.report = {};
    std::mutex counting;
    exec.for_each(scores.segments(), [&](int segment, int) {
      report found{.nan_scores = select(exec.simd_level(), scores, rule, segment, keep)};
      found.triggered = keep.indptr[segment + 1] < keep.seen[segment] ? 1 : 0;
      found.unobserved = found.triggered > 0 && detail::decides_unobserved(rule, scores, segment) ? 1 : 0;
      if (found == report{}) return;
      std::lock_guard const lock(counting);
      *keep.report += found;
    });
    detail::close_gaps(scores, keep);
    written.finish();
  }

 private:
  template <class Rule>
  static std::int64_t select(isa simd_level, score_view const& scores, Rule const& rule, int segment,
                             keep_set const& keep) {
    lane const this_lane = scores.lane_of(segment);
    int const count = scores.lanes.committed(this_lane);
    int const* const position = scores.lanes.position.row(this_lane);
    float const* const score = scores.row(segment);
    int* const to = keep.indices + static_cast<std::int64_t>(segment) * scores.lanes.bound;
    // The marks are the last bytes of the row that the ordinals are listed in.
    auto* const mark = reinterpret_cast<unsigned char*>(to) + 3 * static_cast<std::size_t>(count);
    int nan = 0;
    for (int e = 0; e < count; ++e) {
      bool const forced = rule.forces(entry{this_lane, e, count, position[e], 0});
      nan += !forced && score[e] != score[e] ? 1 : 0;
      mark[e] = forced || rule.picks(score[e]) ? 1 : 0;
    }
    int const kept = detail::list_marked_for(simd_level)(mark, count, to);
    keep.seen[segment] = count;
    keep.indptr[segment + 1] = kept;
    return nan;
  }
};

}  // namespace KVPOLICY_NAMESPACE
