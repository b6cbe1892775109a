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

/// A keep set that a verb is writing. If a functor of the rule throws, it lists nothing of any segment and was made for
/// no number of entries, so that whoever reads it stays in its memory and no applier takes it.
class unfinished_keep {
 public:
  explicit unfinished_keep(keep_set const& keep) : keep_(keep) {}
  unfinished_keep(unfinished_keep const&) = delete;
  unfinished_keep& operator=(unfinished_keep const&) = delete;
  ~unfinished_keep() {
    if (finished_) return;
    std::fill_n(keep_.offset, keep_.segments() + 1, 0);
    std::fill_n(keep_.seen, keep_.segments(), -1);
    *keep_.report = {};
  }
  void finish() { finished_ = true; }

 private:
  keep_set const& keep_;
  bool finished_ = false;
};

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
