// What the host does with segments: lanes that decide together.
#pragma once

#include <algorithm>
#include <kvpolicy/core/check_counts.hpp>
#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/core/scores.hpp>

namespace KVPOLICY_NAMESPACE::detail {

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
