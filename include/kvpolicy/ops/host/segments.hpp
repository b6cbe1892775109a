// SPDX-License-Identifier: Apache-2.0
// Helpers of the host for segments, which are lanes that decide together.
#pragma once

#include <algorithm>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/scores.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// A keep set that a verb is writing. If a functor of the rule throws, the keep set lists nothing, and its
/// `entry_count` counts are invalid. So a reader stays within its memory, and every applier refuses it.
class unfinished_keep {
 public:
  explicit unfinished_keep(keep_set const& keep) : keep_(keep) {}
  unfinished_keep(unfinished_keep const&) = delete;
  unfinished_keep& operator=(unfinished_keep const&) = delete;
  ~unfinished_keep() {
    if (finished_) return;
    std::fill_n(keep_.indptr, keep_.segments() + 1, 0);
    std::fill_n(keep_.entry_count, keep_.segments(), -1);
    *keep_.report = {};
  }
  void finish() { finished_ = true; }

 private:
  keep_set const& keep_;
  bool finished_ = false;
};

/// Closes the gaps between segments, which were written `apart` ordinals apart; `indptr` has the number of each. Moving
/// them in order never overwrites an ordinal that is still to be read.
inline void close_gaps(score_view const& scores, keep_set const& keep, int apart) {
  keep.indptr[0] = 0;
  for (int segment = 0; segment < scores.segments(); ++segment) {
    int const* const from = keep.indices + static_cast<std::int64_t>(segment) * apart;
    auto const kept = keep.indptr[segment + 1];
    int* const to = keep.indices + keep.indptr[segment];
    if (to != from) std::copy_n(from, kept, to);
    keep.indptr[segment + 1] = keep.indptr[segment] + kept;
  }
}
inline void close_gaps(score_view const& scores, keep_set const& keep) {
  close_gaps(scores, keep, scores.lanes.capacity);
}

/// Calls visit(segment, lane) for the segments [begin, end) and the first lane of each.
template <class Visit>
void for_each_segment(score_view const& scores, int begin, int end, Visit const& visit) {
  if (scores.decides == granularity::lane) return for_each_lane(scores.lanes, begin, end, visit);
  for (int segment = begin; segment < end; ++segment) visit(segment, scores.lane_of(segment));
}

}  // namespace KVPOLICY_NAMESPACE::detail
