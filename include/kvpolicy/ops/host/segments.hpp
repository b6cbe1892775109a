// What the host does with segments: lanes that decide together.
#pragma once

#include <algorithm>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/core/scores.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

/// Lanes that decide together hold equally many entries: the first stands for all.
inline void refuse_unequal_counts(char const* call, score_view const& scores) {
  if (scores.decides == granularity::lane) return;
  for (int i = 0; i < scores.who.size(); ++i) {
    lane const first = scores.lane_of(segment_of(scores.who, scores.decides, i));
    int const count = scores.who.committed(scores.who.at(i));
    expects(count == scores.who.committed(first), call, "count", count,
            "lanes that decide together hold equally many entries");
  }
}

/// Segments were listed `bound` ordinals apart, and offsets hold how many each has; moving them together never
/// overtakes.
inline void close_gaps(score_view const& scores, keep_set const& keep) {
  keep.offset[0] = 0;
  for (int segment = 0; segment < scores.segments(); ++segment) {
    int const* const from = keep.ordinal + static_cast<std::int64_t>(segment) * scores.who.bound;
    auto const kept = keep.offset[segment + 1];
    int* const to = keep.ordinal + keep.offset[segment];
    if (to != from) std::copy_n(from, kept, to);
    keep.offset[segment + 1] = keep.offset[segment] + kept;
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
