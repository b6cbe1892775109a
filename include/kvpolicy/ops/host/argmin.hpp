// SPDX-License-Identifier: Apache-2.0
// Host implementations of argmin, argmin_of, drop_listed and count_dropped.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/host/lowest.hpp>
#include <kvpolicy/ops/host/replace_listed.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/host/segments.hpp>
#include <kvpolicy/ops/host/sort_entries.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/host/unit_marks.hpp>
#include <kvpolicy/ops/lists.hpp>
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
    lowest_kernels const& kernels = lowest_of_isa[exec.simd_level()];
    std::int64_t const bytes = std::int64_t{bytes_of_entry} * scores.lanes.capacity;
    exec.for_each_range(scores.segments(), bytes, [&](int begin, int end, int) {
      report found;
      searches waiting;
      auto const wait = [&](int segment, lane first, int heads) {
        if (waiting.size + heads > searches::most) finish(kernels, rule, keep, found, waiting);
        prepare(kernels, scores, rule, segment, first, heads, keep, found, waiting);
      };
      if (scores.decides == granularity::lane) {
        for_each_heads(scores.lanes, begin, end, searches::most, wait);
      } else {
        for (int segment = begin; segment < end; ++segment) wait(segment, scores.lane_of(segment), 1);
      }
      finish(kernels, rule, keep, found, waiting);
      std::lock_guard const lock(counting);
      *keep.report += found;
    });
    close_gaps(scores, keep, 1);  // a segment lists one entry at most
    written.finish();
  }

 private:
  /// Segments that trigger and wait for their searches. The searches follow one right after another, so that a
  /// processor begins with the next row before it has found the entry of this one. Sixteen wait at a time:
  /// with fewer, page walks overlap too little; with more, prefetched lines are evicted before use.
  struct searches {
    static constexpr int most = 16;
    int size = 0;
    int segment[most];
    lane_entries of[most];
    candidate_entries candidates[most];  ///< if the rule has `candidates`
    int lowest[most];                    ///< the ordinal of the lowest candidate, or -1 if every entry is forced
  };

  template <class Rule>
  static constexpr bool knows_candidates = requires(Rule const& rule, lane_entries const& of) { rule.candidates(of); };

  /// Counts the segments of some heads of a layer, and lets those that trigger wait for their searches. All that it
  /// calls is short, and is inlined.
  template <class Rule>
  [[gnu::flatten, gnu::noinline]] void prepare(lowest_kernels const& kernels, score_view const& scores,
                                               Rule const& rule, int segment, lane const& first, int heads,
                                               keep_set const& keep, report& found, searches& waiting) const {
    lanes const& batch = scores.lanes;
    head_rows<int> const counts(batch.count, first);
    head_rows<int> const positions(batch.position, first);
    head_rows<lane_order> const orders(batch.order, first);
    bool const ordered = batch.order.data != nullptr;
    std::int64_t const drafts = batch.in_flight != nullptr ? *batch.drafts(first.sequence) : 0;
    for (int h = 0; h < heads; ++h) {
      lane_entries of{.lane = {first.sequence, first.layer, first.head + h},
                      .count = static_cast<int>(std::clamp<std::int64_t>(*counts[h] - drafts, 0, batch.capacity)),
                      .position = positions[h],
                      .order = ordered ? *orders[h] : lane_order{}};
      prepare(kernels, scores, rule, segment + h, of, keep, found, waiting);
    }
  }

  /// The same for one segment.
  template <class Rule>
  [[gnu::always_inline]] void prepare(lowest_kernels const& kernels, score_view const& scores, Rule const& rule,
                                      int segment, lane_entries& of, keep_set const& keep, report& found,
                                      searches& waiting) const {
    of.budget = rule.budget(of.lane, of.count);
    keep.note(segment, of.lane, of.count);
    keep.indptr[segment + 1] = 0;
    if (!rule.triggers(of.count, of.budget) || of.count == 0) {
      found.over_budget += of.count > of.budget ? 1 : 0;
      return;
    }
    ++found.triggered;
    found.unobserved += decides_unobserved(rule, scores, segment, of.lane) ? 1 : 0;
    int const i = waiting.size++;
    waiting.segment[i] = segment;
    waiting.of[i] = of;
    if constexpr (knows_candidates<Rule>) {
      ordinal_range droppable = rule.candidates(of);
      droppable.begin = std::clamp(droppable.begin, 0, of.count);
      droppable.end = std::clamp(droppable.end, droppable.begin, of.count);
      bool const any = droppable.begin < droppable.end;
      if constexpr (ascends_in_position<Function>) {
        waiting.lowest[i] = any ? oldest_entry(kernels, of, droppable) : -1;
      } else {
        waiting.candidates[i] = any ? candidates_of(kernels, of, droppable) : candidate_entries{};
      }
    }
  }

  /// Searches the segments that wait, and lists what they drop.
  template <class Rule>
  void finish(lowest_kernels const& kernels, Rule const& rule, keep_set const& keep, report& found,
              searches& waiting) const {
    for (int i = 0; i < waiting.size; ++i) {
      lane_entries const& of = waiting.of[i];
      if constexpr (!knows_candidates<Rule>) {
        waiting.lowest[i] = lowest_unforced(rule, waiting.segment[i], of, found.nan_scores);
      } else if constexpr (!ascends_in_position<Function>) {
        waiting.lowest[i] =
            lowest_entry(kernels, source, waiting.segment[i], of, waiting.candidates[i], &found.nan_scores);
      }
    }
    for (int i = 0; i < waiting.size; ++i) {
      lane_entries const& of = waiting.of[i];
      int const lowest = waiting.lowest[i];
      int const dropped = lowest < 0 ? 0 : 1;
      found.over_budget += of.count - dropped > of.budget ? 1 : 0;
      found.forced_over_budget += 1 - dropped;
      if (dropped == 0) continue;
      keep.indices[waiting.segment[i]] = lowest;
      keep.indptr[waiting.segment[i] + 1] = 1;
      __builtin_prefetch(of.position + lowest, 1, 3);  // an applier writes there
      if (keep.slots.data != nullptr) __builtin_prefetch(keep.slots.row(of.lane) + lowest, 1, 3);
    }
    waiting.size = 0;
  }

  /// Returns the ordinal of the lowest entry that the rule does not force, or -1. It asks the rule about each entry.
  template <class Rule>
  int lowest_unforced(Rule const& rule, int segment, lane_entries const& of, std::int64_t& nan) const {
    int lowest = -1;
    float least = 0;
    for (int e = 0; e < of.count; ++e) {
      if (rule.forces(entry{of.lane, e, of.count, of.position[e], of.budget})) continue;
      float one[1];
      float const score = *source.of(segment, of, e, 1, one);
      nan += score != score ? 1 : 0;
      bool const never = lowest >= 0 && least != least && score == score;
      if (lowest < 0 || (!never && !(score > least))) lowest = e, least = score;
    }
    return lowest;
  }
};

}  // namespace detail

template <>
struct implementation<ops::argmin_t, host> {
  template <class Rule>
  static void run(host_executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    if (!scores.same_tokens) detail::refuse_other_tokens("argmin", scores);
    detail::lowest_dropper<void, detail::table_scores>{{scores}}.run(exec, scores, rule, keep);
  }
};

/// Scores are computed by the thousand, and compared while they are in the processor's cache.
template <>
struct implementation<ops::argmin_of_t, host> {
  template <class Function, class Rule>
  static void run(host_executor& exec, score_view const& scores, Function const& f, Rule const& rule,
                  keep_set const& keep) {
    detail::lowest_dropper<Function, detail::computed_scores<Function>>{{f, exec.simd_level()}}.run(exec, scores, rule,
                                                                                                    keep);
  }
};

template <>
struct implementation<ops::drop_listed_t, host> {
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
      if (!detail::leads_row(in.lanes.count, keep.lanes, this_lane)) continue;
      *in.lanes.count.row(this_lane) -= static_cast<int>(keep.listed(segment_of(keep.lanes, keep.decides, i)).size());
    }
  }

 private:
  static void close_up(cache const& in, by_lane<int> const& list, std::span<recorded_column const> columns,
                       lane this_lane, int ordinal) {
    int const last = *in.lanes.count.row(this_lane) - 1;
    if (detail::leads_row(detail::rows_of(in.where, list), in.lanes, this_lane)) {
      int* const slots = detail::writable_list(list, in.where, this_lane);
      std::rotate(slots + ordinal, slots + ordinal + 1, slots + last + 1);
    }
    if (detail::leads_row(in.lanes.position, in.lanes, this_lane)) {
      int* const position = in.lanes.position.row(this_lane);
      std::copy(position + ordinal + 1, position + last + 1, position + ordinal);
    }
    for (recorded_column const& each : columns) {
      if (each.about.extent != column_extent::lane_entry || each.about.rule != on_move::permute) continue;
      auto const width = static_cast<std::size_t>(each.about.bytes);
      std::byte* const at = each.rows.row(this_lane) + static_cast<std::size_t>(ordinal) * width;
      std::memmove(at, at + width, static_cast<std::size_t>(last - ordinal) * width);
    }
    detail::lower_known(columns, this_lane, ordinal);
  }
};

template <>
struct implementation<ops::count_dropped_t, host> {
  static void run(host_executor&, keep_set const& keep, lanes const& batch, apply_stats* stats) {
    *stats = {};
    for (int i = 0; i < keep.lanes.size(); ++i) {
      int const segment = segment_of(keep.lanes, keep.decides, i);
      auto const dropped = std::ssize(keep.listed(segment));
      stats->logical_kept += keep.entry_count[segment] - dropped;
      stats->physical_freed += dropped;
      stats->attended_length += *batch.count.row(keep.lanes.at(i));
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
