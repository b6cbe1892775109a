// Host implementation of argmin, and of what carries its one dropped entry out.
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
      report const found = drop(exec.speaks(), scores, rule, segment, keep);
      std::lock_guard const lock(counting);
      *keep.report += found;
    });
    detail::close_gaps(scores, keep);
    written.finish();
  }

 private:
  template <class Rule>
  static report drop(isa speaks, score_view const& scores, Rule const& rule, int segment, keep_set const& keep) {
    report found;
    lane const who = scores.lane_of(segment);
    int const count = scores.who.committed(who);
    int const budget = rule.budget(who, count);
    keep.seen[segment] = count;
    keep.offset[segment + 1] = 0;
    found.over_budget = count > budget ? 1 : 0;
    if (!rule.triggers(count, budget) || count == 0) return found;
    found.triggered = 1;
    found.unobserved = detail::decides_unobserved(rule, scores, segment) ? 1 : 0;
    int const lowest = lowest_of(speaks, scores, rule, segment, {count, budget}, found.nan_scores);
    if (lowest < 0) {
      found.forced_over_budget = 1;
    } else {
      keep.ordinal[static_cast<std::int64_t>(segment) * scores.who.bound] = lowest;
      keep.offset[segment + 1] = 1;
      found.over_budget = count - 1 > budget ? 1 : 0;
    }
    return found;
  }

  struct entries_of {
    int count;
    int budget;
  };

  /// -1: every entry is forced.
  template <class Rule>
  static int lowest_of(isa speaks, score_view const& scores, Rule const& rule, int segment, entries_of const& there,
                       std::int64_t& nan) {
    lane const who = scores.lane_of(segment);
    int const* const position = scores.who.position.row(who);
    float const* const score = scores.row(segment);
    if constexpr (requires(lane_entries const& of) { rule.candidates(of); }) {
      ordinal_range free = rule.candidates(lane_entries{who, there.count, there.budget, position});
      free.begin = std::clamp(free.begin, 0, there.count);
      free.end = std::clamp(free.end, free.begin, there.count);
      if (free.begin == free.end) return -1;
      return free.begin + detail::argmin_for(speaks).last_lowest(score + free.begin, free.end - free.begin, &nan);
    } else {
      int lowest = -1;
      for (int e = 0; e < there.count; ++e) {
        if (rule.forces(entry{who, e, there.count, position[e], there.budget})) continue;
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
                  std::span<held_column const> columns) {
    exec.for_each(keep.who.size(), [&](int i, int) {
      lane const who = keep.who.at(i);
      for (int const ordinal : keep.listed(segment_of(keep.who, keep.decides, i))) {
        close_up(in, list, columns, who, ordinal);
      }
    });
    for (int i = 0; i < keep.who.size(); ++i) {
      lane const who = keep.who.at(i);
      if (!detail::owns_row(in.who.count, keep.who, who)) continue;
      *in.who.count.row(who) -= static_cast<int>(keep.listed(segment_of(keep.who, keep.decides, i)).size());
    }
  }

 private:
  static void close_up(cache const& in, by_lane<int> const& list, std::span<held_column const> columns, lane who,
                       int ordinal) {
    int const last = *in.who.count.row(who) - 1;
    if (detail::owns_row(detail::rows_of(in.where, list), in.who, who)) {
      int* const slots = detail::list_row(list, in.where, who);
      std::rotate(slots + ordinal, slots + ordinal + 1, slots + last + 1);
    }
    if (detail::owns_row(in.who.position, in.who, who)) {
      int* const position = in.who.position.row(who);
      std::copy(position + ordinal + 1, position + last + 1, position + ordinal);
    }
    for (held_column const& each : columns) {
      if (each.about.one != per::lane_entry || each.about.rule != on_move::permute) continue;
      auto const width = static_cast<std::size_t>(each.about.bytes);
      std::byte* const at = each.rows.row(who) + static_cast<std::size_t>(ordinal) * width;
      std::memmove(at, at + width, static_cast<std::size_t>(last - ordinal) * width);
    }
    detail::lower_known(columns, who, ordinal);
  }
};

template <>
struct implementation<ops::tell_dropped_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, keep_set const& keep, lanes const& who, tally* told) {
    *told = {};
    for (int i = 0; i < keep.who.size(); ++i) {
      int const segment = segment_of(keep.who, keep.decides, i);
      auto const dropped = std::ssize(keep.listed(segment));
      told->logical_kept += keep.seen[segment] - dropped;
      told->physical_freed += dropped;
      told->attended_length += *who.count.row(keep.who.at(i));
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
