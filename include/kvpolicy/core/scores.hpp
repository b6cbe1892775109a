// SPDX-License-Identifier: Apache-2.0
// Views of scores, keep sets and reports.
#pragma once

#include <kvpolicy/core/lanes.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

/// Scores, float32 [segments, entries]. Entries with higher scores are kept. The table has one row for each segment of
/// `decides`.
struct score_view {
  kvpolicy::lanes lanes{};
  granularity decides = granularity::lane;
  by_lane<float> rows{};
  float* spare = nullptr;    ///< extra memory of a plan, for scorers that ask for it with `spare_rows`
  bool same_tokens = false;  ///< true: lanes of a segment were checked to hold the same tokens; verbs skip the check

  [[nodiscard]] KVPOLICY_HD constexpr int segments() const { return kvpolicy::segments(lanes, decides); }
  /// The first lane of a segment. Its count and positions are those of the whole segment.
  [[nodiscard]] KVPOLICY_HD constexpr lane lane_of(int segment) const {
    return lanes.at(first_lane(lanes, decides, segment));
  }
  [[nodiscard]] KVPOLICY_HD constexpr float* row(int segment) const { return rows.row(lane_of(segment)); }
};

/// A view of contiguous scores: row after row in the order of segments, `stride` floats apart.
[[nodiscard]] constexpr score_view contiguous_scores(lanes const& batch, granularity decides, float* data,
                                                     std::int64_t stride) {
  std::int64_t const heads = decides == granularity::lane ? batch.heads : 1;
  std::int64_t const layers = decides == granularity::sequence ? 1 : batch.layers();
  std::int64_t const layer = decides == granularity::sequence ? 0 : stride * heads;
  std::int64_t const head = decides == granularity::lane ? stride : 0;
  std::int64_t const sequence = stride * heads * layers;
  return {batch, decides, {data - batch.sequence_begin * sequence - batch.layer_begin * layer, sequence, layer, head}};
}

/// The rows of scores that hold so many floats: what a scorer's `spare_rows` returns.
[[nodiscard]] constexpr int rows_of_scores(lanes const& batch, std::int64_t floats) {
  return static_cast<int>((floats + batch.capacity - 1) / batch.capacity);
}

/// `count` numbers of each lane that a scorer leaves for an allotter: the first floats of its spare memory.
[[nodiscard]] constexpr by_lane<float> numbers_of_lanes(score_view const& of, int count) {
  return contiguous_scores(of.lanes, granularity::lane, of.spare, count).rows;
}

/// One entry, as the argument of protections and maps.
struct entry {
  kvpolicy::lane lane{};
  int ordinal = 0;
  int count = 0;     ///< committed entries of the lane
  int position = 0;  ///< logical position of the entry
  int budget = 0;    ///< number of entries that the lane may keep; 0 in a map, where there is no budget
};

namespace detail {
/// A function of an ordinal, with which concepts ask for members that call one.
struct ordinal_visitor {
  void operator()(int) const;
};
}  // namespace detail

/// Ordinals [begin, end).
struct ordinal_range {
  int begin = 0;
  int end = 0;
};

/// All committed entries of a lane, as the argument of a protection's `candidates`.
struct lane_entries {
  kvpolicy::lane lane{};
  int count = 0;
  int budget = 0;                 ///< number of entries that the lane may keep
  int const* position = nullptr;  ///< logical position of each entry
  lane_order order{};             ///< the order of the positions. Ordinals count as if they ascended

  /// The number of entries whose position is below `limit`, which is the ordinal of the first entry at `limit` or
  /// behind it.
  [[nodiscard]] KVPOLICY_HD constexpr int first_at(int limit) const {
    if (!order.is_ring()) return first_of_any(limit);
    int begin = 0;
    int end = limit < 0 ? 0 : limit < count ? limit : count;  // positions differ, and none is negative
    // Where none of the first positions was dropped, one read tells.
    if (end > 0 && position[order.ordinal_of(end - 1)] < limit) return end;
    while (begin < end) {
      int const middle = begin + (end - begin) / 2;
      bool const below = position[order.ordinal_of(middle)] < limit;
      (below ? begin : end) = below ? middle + 1 : middle;
    }
    return begin;
  }

 private:
  /// The same in a lane without an order. Only its first entries ascend, and are older than the others.
  [[nodiscard]] KVPOLICY_HD constexpr int first_of_any(int limit) const {
    // The same read tells here, because positions differ.
    if (limit > 0 && limit <= order.begin && position[limit - 1] < limit) return limit;
    int below = 0;
    while (below < order.begin && position[below] < limit) ++below;
    if (below < order.begin || below >= limit) return below;
    for (int e = order.begin; e < count; ++e) below += position[e] < limit ? 1 : 0;
    return below;
  }
};

/// The effect of one `apply` on memory, in entries summed over lanes. The three numbers belong together, because each
/// alone can mislead. Appliers write them into the executor's memory.
struct apply_stats {
  std::int64_t logical_kept = 0;     ///< entries that the keep sets keep
  std::int64_t physical_freed = 0;   ///< entries in slots and whole pages that the engine may reuse after this call.
                                     ///< Rows that belong to one sequence (identity, ring) and masked rows never count
  std::int64_t attended_length = 0;  ///< rows that attention reads in the next step; masked ones are read, too
  friend bool operator==(apply_stats const&, apply_stats const&) = default;
};

/// Whether a keep set lists the kept or the dropped entries. Policies that drop one entry a step list the dropped one.
enum class side { kept, dropped };

/// The items that a keep set lists: tokens (entries) or pages.
enum class item { token, page };

/// Counters of one decision that depend on the data. They are in the executor's memory.
struct report {
  std::int64_t nan_scores = 0;          ///< candidates whose score was NaN; NaN ranks below every number
  std::int64_t forced_over_budget = 0;  ///< segments whose forced entries alone exceed the budget: exactly they stay
  std::int64_t triggered = 0;           ///< segments whose trigger fired; with a pick by threshold: that drop entries
  /// Triggered segments for which nothing was observed in any of their lanes: a recorder of the scorer has recorded
  /// nothing about the lane's entries, or its query view has no row of the lane, or none that sees an entry. The order
  /// of the entries then decided what was dropped. Signals that the engine gives in place of a recorder, and scorers
  /// that read neither query rows nor recorded signals, are never counted.
  std::int64_t unobserved = 0;
  /// Segments that keep more entries than their budget after the decision, whether they were triggered or not. Reasons
  /// are forced entries, slack that is not used up, and `lowest_one`, which drops one entry at a time. A pick by
  /// threshold has no budget. Segments that share a budget count as one, here and in the counters of segments above.
  std::int64_t over_budget = 0;
  std::int64_t emptied = 0;  ///< segments with entries, of which an eviction's pick by threshold keeps none
  friend bool operator==(report const&, report const&) = default;

  constexpr report& operator+=(report const& more) {
    nan_scores += more.nan_scores;
    forced_over_budget += more.forced_over_budget;
    triggered += more.triggered;
    unobserved += more.unobserved;
    over_budget += more.over_budget;
    emptied += more.emptied;
    return *this;
  }
};

/// For each segment the ordinals that are kept (or dropped), ascending and unique, in CSR form. A view of a plan's
/// memory.
struct keep_set {
  kvpolicy::lanes lanes{};
  granularity decides = granularity::lane;
  item items = item::token;
  side lists = side::kept;
  std::int64_t* indptr = nullptr;  ///< segments + 1
  int* indices = nullptr;          ///< `capacity` ordinals
  int* entry_count =
      nullptr;  ///< committed entries of each segment at the decision; `apply` refuses if they have changed
  std::int64_t capacity = 0;
  kvpolicy::report* report = nullptr;
  by_lane<int const> slots{};  ///< the list in which an applier will look up the slot of a dropped entry. The slot is
                               ///< prefetched once the entry is known, and never read; null: it is not prefetched
  std::uint64_t* epoch = nullptr;   ///< the epoch of each sequence and layer at the decision; null: none was noted
  by_lane<std::uint64_t> epochs{};  ///< the epoch of each slot and layer, in the memory of a state; null: unknown

  [[nodiscard]] KVPOLICY_HD constexpr int segments() const { return kvpolicy::segments(lanes, decides); }
  /// Notes what a decision about a segment is made of: its number of committed entries, and the epochs of its layers.
  /// `first` is its first lane.
  KVPOLICY_HD constexpr void note(int segment, lane first, int count) const {
    entry_count[segment] = count;
    if (epochs.data == nullptr || epoch == nullptr || first.head != 0) return;  // the heads of a layer have one epoch
    int const end = decides == granularity::sequence ? lanes.layer_end : first.layer + 1;
    for (; first.layer < end; ++first.layer) epoch[epoch_index(first)] = *epochs.row(first);
  }
  /// True if nothing has changed the entries of a lane since `note`, or if nobody knows.
  [[nodiscard]] KVPOLICY_HD constexpr bool is_fresh(lane one) const {
    return epochs.data == nullptr || epoch == nullptr || epoch[epoch_index(one)] == *epochs.row(one);
  }
  [[nodiscard]] KVPOLICY_HD constexpr int epoch_index(lane one) const {
    return (one.sequence - lanes.sequence_begin) * lanes.layers() + one.layer - lanes.layer_begin;
  }
  /// The ordinals listed for one segment.
  [[nodiscard]] constexpr std::span<int const> listed(int segment) const {
    return {indices + indptr[segment], static_cast<std::size_t>(indptr[segment + 1] - indptr[segment])};
  }
};

}  // namespace KVPOLICY_NAMESPACE
