// Host implementations of argmin, drop_listed and count_dropped.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/host/argmin_kernels.hpp>
#include <kvpolicy/ops/host/lists.hpp>
#include <kvpolicy/ops/host/segments.hpp>
#include <mutex>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::argmin_t, host> {
  static constexpr bool provided = true;

  template <class Rule>
  static void run(host_executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    if (!scores.same_tokens) detail::refuse_other_tokens("argmin", scores);
    detail::unfinished_keep written(keep);
    *keep.report = {};
    std::mutex counting;
    exec.for_each(scores.segments(), [&](int segment, int) {
      report const found = drop(exec.simd_level(), scores, rule, segment, keep);
      std::lock_guard const lock(counting);
      *keep.report += found;
    });
    detail::close_gaps(scores, keep);
    written.finish();
  }

 private:
  template <class Rule>
  static report drop(isa simd_level, score_view const& scores, Rule const& rule, int segment, keep_set const& keep) {
    report found;
    lane const this_lane = scores.lane_of(segment);
    int const count = scores.lanes.committed(this_lane);
    int const budget = rule.budget(this_lane, count);
    keep.seen[segment] = count;
    keep.indptr[segment + 1] = 0;
    found.over_budget = count > budget ? 1 : 0;
    if (!rule.triggers(count, budget) || count == 0) return found;
    found.triggered = 1;
    found.unobserved = detail::decides_unobserved(rule, scores, segment) ? 1 : 0;
    int const lowest = lowest_of(simd_level, scores, rule, segment, {count, budget}, found.nan_scores);
    if (lowest < 0) {
      found.forced_over_budget = 1;
    } else {
      keep.indices[static_cast<std::int64_t>(segment) * scores.lanes.bound] = lowest;
      keep.indptr[segment + 1] = 1;
      found.over_budget = count - 1 > budget ? 1 : 0;
    }
    return found;
  }

  struct entries_of {
    int count;
    int budget;
  };

  /// The ordinal of the lowest candidate, or -1 if every entry is forced.
  template <class Rule>
  static int lowest_of(isa simd_level, score_view const& scores, Rule const& rule, int segment, entries_of const& there,
                       std::int64_t& nan) {
    lane const this_lane = scores.lane_of(segment);
    int const* const position = scores.lanes.position.row(this_lane);
    float const* const score = scores.row(segment);
    if constexpr (requires(lane_entries const& of) { rule.candidates(of); }) {
      ordinal_range free = rule.candidates(lane_entries{this_lane, there.count, there.budget, position});
      free.begin = std::clamp(free.begin, 0, there.count);
      free.end = std::clamp(free.end, free.begin, there.count);
      if (free.begin == free.end) return -1;
      return free.begin + detail::argmin_for(simd_level).last_lowest(score + free.begin, free.end - free.begin, &nan);
    } else {
      int lowest = -1;
      for (int e = 0; e < there.count; ++e) {
        if (rule.forces(entry{this_lane, e, there.count, position[e], there.budget})) continue;
        nan += score[e] != score[e] ? 1 : 0;
        bool const never = lowest >= 0 && score[lowest] != score[lowest] && score[e] == score[e];
        if (lowest < 0 || (!never && !(score[e] > score[lowest]))) lowest = e;
      }
      return lowest;
    }
  }
};

template <>
struct implementation<ops::drop_listed_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, keep_set const& keep, cache const& in, by_lane<int> const& list,
                  std::span<recorded_column const> columns) {
    exec.for_each(keep.lanes.size(), [&](int i, int) {
      lane const this_lane = keep.lanes.at(i);
      for (int const ordinal : keep.listed(segment_of(keep.lanes, keep.decides, i))) {
        close_up(in, list, columns, this_lane, ordinal);
      }
    });
    for (int i = 0; i < keep.lanes.size(); ++i) {
      lane const this_lane = keep.lanes.at(i);
      if (!detail::owns_row(in.lanes.count, keep.lanes, this_lane)) continue;
      *in.lanes.count.row(this_lane) -= static_cast<int>(keep.listed(segment_of(keep.lanes, keep.decides, i)).size());
    }
  }

 private:
  static void close_up(cache const& in, by_lane<int> const& list, std::span<recorded_column const> columns,
                       lane this_lane, int ordinal) {
    int const last = *in.lanes.count.row(this_lane) - 1;
    if (detail::owns_row(detail::rows_of(in.where, list), in.lanes, this_lane)) {
      int* const slots = detail::list_row(list, in.where, this_lane);
      std::rotate(slots + ordinal, slots + ordinal + 1, slots + last + 1);
    }
    if (detail::owns_row(in.lanes.position, in.lanes, this_lane)) {
      int* const position = in.lanes.position.row(this_lane);
      std::copy(position + ordinal + 1, position + last + 1, position + ordinal);
    }
    for (recorded_column const& each : columns) {
      if (each.about.one != per::lane_entry || each.about.rule != on_move::permute) continue;
      auto const width = static_cast<std::size_t>(each.about.bytes);
      std::byte* const at = each.rows.row(this_lane) + static_cast<std::size_t>(ordinal) * width;
      std::memmove(at, at + width, static_cast<std::size_t>(last - ordinal) * width);
    }
    detail::lower_known(columns, this_lane, ordinal);
  }
};

template <>
struct implementation<ops::count_dropped_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, keep_set const& keep, lanes const& batch, apply_stats* stats) {
    *stats = {};
    for (int i = 0; i < keep.lanes.size(); ++i) {
      int const segment = segment_of(keep.lanes, keep.decides, i);
      auto const dropped = std::ssize(keep.listed(segment));
      stats->logical_kept += keep.seen[segment] - dropped;
      stats->physical_freed += dropped;
      stats->attended_length += *batch.count.row(keep.lanes.at(i));
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
