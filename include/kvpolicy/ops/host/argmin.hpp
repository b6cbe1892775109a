// Host implementations of argmin, argmin_of, drop_listed and count_dropped.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/host/lists.hpp>
#include <kvpolicy/ops/host/lowest.hpp>
#include <kvpolicy/ops/host/replace_listed.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/host/segments.hpp>
#include <kvpolicy/ops/host/sort_entries.hpp>  // IWYU pragma: export
#include <mutex>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// Lists the entry that each segment drops. `source` gives the scores, and `Function` is the function behind it, or
/// void.
template <class Function, class Source>
struct lowest_dropper {
  Source source;

  template <class Rule>
  void run(host_executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) const {
    unfinished_keep written(keep);
    *keep.report = {};
    std::mutex counting;
    constexpr int bytes_of_entry = ascends_in_position<Function> ? 0 : reads_row<Function> ? 4 : 12;
    argmin_kernels const& kernels = argmin_for(exec.simd_level());
    std::int64_t const bytes = std::int64_t{bytes_of_entry} * scores.lanes.bound;
    exec.for_each_range(scores.segments(), bytes, [&](int begin, int end, int) {
      report found;
      for_each_segment(scores, begin, end,
                       [&](int segment, lane first) { drop(kernels, scores, rule, segment, first, keep, found); });
      std::lock_guard const lock(counting);
      *keep.report += found;
    });
    close_gaps(scores, keep, 1);  // a segment lists one entry at most
    written.finish();
  }

 private:
  /// Finds the entry that a segment drops. All that it calls for a lane is short, and is inlined.
  template <class Rule>
  [[gnu::flatten]] void drop(argmin_kernels const& kernels, score_view const& scores, Rule const& rule, int segment,
                             lane this_lane, keep_set const& keep, report& found) const {
    int const count = scores.lanes.committed(this_lane);
    int const budget = rule.budget(this_lane, count);
    keep.seen[segment] = count;
    keep.indptr[segment + 1] = 0;
    if (!rule.triggers(count, budget) || count == 0) {
      found.over_budget += count > budget ? 1 : 0;
      return;
    }
    ++found.triggered;
    found.unobserved += decides_unobserved(rule, scores, segment, this_lane) ? 1 : 0;
    lane_entries const of{this_lane, count, budget, scores.lanes.position.row(this_lane),
                          scores.lanes.order_of(this_lane)};
    int const lowest = lowest_of(kernels, rule, segment, of, found.nan_scores);
    int const dropped = lowest < 0 ? 0 : 1;
    found.over_budget += count - dropped > budget ? 1 : 0;
    found.forced_over_budget += 1 - dropped;
    if (dropped == 0) return;
    keep.indices[segment] = lowest;
    keep.indptr[segment + 1] = 1;
    __builtin_prefetch(of.position + lowest, 1, 3);  // an applier writes there
  }

  /// The ordinal of the lowest candidate, or -1 if every entry is forced.
  template <class Rule>
  int lowest_of(argmin_kernels const& kernels, Rule const& rule, int segment, lane_entries const& of,
                std::int64_t& nan) const {
    if constexpr (requires { rule.candidates(of); }) {
      ordinal_range free = rule.candidates(of);
      free.begin = std::clamp(free.begin, 0, of.count);
      free.end = std::clamp(free.end, free.begin, of.count);
      if (free.begin == free.end) return -1;
      if constexpr (ascends_in_position<Function>) return oldest_entry(kernels, of, free);
      return lowest_entry(kernels, source, segment, of, free, &nan);
    } else {
      int lowest = -1;
      float least = 0;
      for (int e = 0; e < of.count; ++e) {
        if (rule.forces(entry{of.lane, e, of.count, of.position[e], of.budget})) continue;
        float one[1];
        float const score = *source.of(segment, entry{of.lane, e, of.count, 0, 0}, 1, of.position + e, one);
        nan += score != score ? 1 : 0;
        bool const never = lowest >= 0 && least != least && score == score;
        if (lowest < 0 || (!never && !(score > least))) lowest = e, least = score;
      }
      return lowest;
    }
  }
};

}  // namespace detail

template <>
struct implementation<ops::argmin_t, host> {
  static constexpr bool provided = true;

  template <class Rule>
  static void run(host_executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    if (!scores.same_tokens) detail::refuse_other_tokens("argmin", scores);
    detail::lowest_dropper<void, detail::table_scores>{{scores}}.run(exec, scores, rule, keep);
  }
};

/// Scores are computed by the thousand, and compared while they are in the processor's cache.
template <>
struct implementation<ops::argmin_of_t, host> {
  static constexpr bool provided = true;

  template <class Function, class Rule>
  static void run(host_executor& exec, score_view const& scores, Function const& f, Rule const& rule,
                  keep_set const& keep) {
    detail::lowest_dropper<Function, detail::made_scores<Function>>{{f, exec.simd_level()}}.run(exec, scores, rule,
                                                                                                keep);
  }
};

#if !defined(KVPOLICY_COMPILED)
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

#endif

}  // namespace KVPOLICY_NAMESPACE
