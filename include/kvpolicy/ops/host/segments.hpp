// What the host checks of lanes that decide together.
#pragma once

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

}  // namespace KVPOLICY_NAMESPACE::detail
