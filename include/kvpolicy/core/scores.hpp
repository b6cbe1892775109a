// Scores, and what a keep set and its report look like.
#pragma once

#include <kvpolicy/core/lanes.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

/// float32 [segments, entries]: higher is kept. A row of the table for every segment of `decides`.
struct score_view {
  kvpolicy::lanes lanes{};
  granularity decides = granularity::lane;
  by_lane<float> rows{};
  float* spare = nullptr;    ///< room of a plan for scorers that ask for it by `spare_rows`
  bool same_tokens = false;  ///< lanes of a segment were seen to hold the same tokens: nobody looks again

  [[nodiscard]] KVPOLICY_HD constexpr int segments() const { return kvpolicy::segments(lanes, decides); }
  /// The lane that stands for a segment.
  [[nodiscard]] KVPOLICY_HD constexpr lane lane_of(int segment) const {
    return lanes.at(first_lane(lanes, decides, segment));
  }
  [[nodiscard]] KVPOLICY_HD constexpr float* row(int segment) const { return rows.row(lane_of(segment)); }
};

/// Scores side by side in one piece of memory, `stride` floats a segment, in the order of segments.
[[nodiscard]] constexpr score_view contiguous_scores(lanes const& batch, granularity decides, float* data,
                                                     std::int64_t stride) {
  std::int64_t const heads = decides == granularity::lane ? batch.heads : 1;
  std::int64_t const layers = decides == granularity::token ? 1 : batch.layers();
  std::int64_t const layer = decides == granularity::token ? 0 : stride * heads;
  std::int64_t const head = decides == granularity::lane ? stride : 0;
  return {batch, decides, {data - batch.layer_begin * layer, stride * heads * layers, layer, head}};
}

/// One entry as protections, budgets and maps see it.
struct entry {
  kvpolicy::lane lane{};
  int ordinal = 0;
  int count = 0;     ///< committed entries of the lane
  int position = 0;  ///< logical position of the entry
  int budget = 0;    ///< entries that the lane may keep; 0 in a map, which decides nothing
};

/// Ordinals [begin, end).
struct ordinal_range {
  int begin = 0;
  int end = 0;
};

/// The committed entries of a lane as a protection sees them at once.
struct lane_entries {
  kvpolicy::lane lane{};
  int count = 0;
  int budget = 0;                 ///< entries that the lane may keep
  int const* position = nullptr;  ///< of each entry, ascending

  /// Ordinal of the first entry at `limit` or after.
  [[nodiscard]] KVPOLICY_HD constexpr int first_at(int limit) const {
    int begin = 0;
    int end = count;
    while (begin < end) {
      int const middle = begin + (end - begin) / 2;
      (position[middle] < limit ? begin : end) = position[middle] < limit ? middle + 1 : middle;
    }
    return begin;
  }
};

/// What a decision came to in memory, counted in entries of lanes; the three are always told together, because each
/// alone misleads. Appliers write it where the executor counts.
struct apply_stats {
  std::int64_t logical_kept = 0;     ///< entries that the keep sets list
  std::int64_t physical_freed = 0;   ///< entries whose memory the engine may give to others since this call: whole
                                     ///< slots and pages. Rows that belong to their sequence whatever they hold
                                     ///< (identity, a ring) are never given away, nor is what is only masked
  std::int64_t attended_length = 0;  ///< entries whose rows attention reads in the next step
  friend bool operator==(apply_stats const&, apply_stats const&) = default;
};

/// Which side of a decision a keep set lists. One-token-per-step policies list the one that goes.
enum class side { kept, dropped };

/// What is kept or dropped as one.
enum class unit { token, page };

/// What only the data can tell, counted where the executor counts.
struct report {
  std::int64_t nan_scores = 0;          ///< candidates whose score was NaN; NaN ranks below every number
  std::int64_t forced_over_budget = 0;  ///< segments whose forced entries alone exceed their budget: exactly they stay
  std::int64_t triggered = 0;           ///< segments that had something to decide
  /// Segments that had something to decide although nothing was observed of any of their lanes: a recorder of the
  /// scorer has seen none of the lane's entries, or its query view has no row there, or none that sees an entry. What
  /// was dropped fell to the order of the entries. Signals that an engine gives in a recorder's place, and scorers that
  /// read neither query rows nor recorded signals, never count.
  std::int64_t unobserved = 0;
  /// Segments that keep more entries than their budget after the decision, whether they had something to decide or
  /// not: forced entries, a slack that is not used up, or `lowest_one`, which drops one entry at a time. A pick by
  /// threshold has no budget. Segments that share a budget count as one here, and in the numbers above of segments.
  std::int64_t over_budget = 0;
  friend bool operator==(report const&, report const&) = default;

  constexpr report& operator+=(report const& more) {
    nan_scores += more.nan_scores;
    forced_over_budget += more.forced_over_budget;
    triggered += more.triggered;
    unobserved += more.unobserved;
    over_budget += more.over_budget;
    return *this;
  }
};

/// Per segment the ascending, unique ordinals that are kept (or dropped), as CSR. Memory of a plan.
struct keep_set {
  kvpolicy::lanes lanes{};
  granularity decides = granularity::lane;
  unit of = unit::token;
  side lists = side::kept;
  std::int64_t* indptr = nullptr;  ///< segments + 1
  int* indices = nullptr;          ///< `capacity` ordinals
  int* seen = nullptr;  ///< committed entries of each segment when it decided; a plan of other counts is refused
  std::int64_t capacity = 0;
  kvpolicy::report* report = nullptr;

  [[nodiscard]] KVPOLICY_HD constexpr int segments() const { return kvpolicy::segments(lanes, decides); }
  /// The ordinals listed for one segment.
  [[nodiscard]] constexpr std::span<int const> listed(int segment) const {
    return {indices + indptr[segment], static_cast<std::size_t>(indptr[segment + 1] - indptr[segment])};
  }
};

}  // namespace KVPOLICY_NAMESPACE
