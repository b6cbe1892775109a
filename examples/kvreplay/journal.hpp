// SPDX-License-Identifier: Apache-2.0
// Records the decisions in ordinals of the trace: the entries that each segment holds, their scores, and the steps in
// which entries were dropped.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "options.hpp"
#include "results.hpp"

namespace kvreplay {

/// Follows the decisions of one replay. It translates a segment's ordinals into ordinals of the trace's entries.
class journal {
 public:
  journal(options const& with, any_policy const& policy, int segments, int entries, results& to)
      : how_(with.how),
        writes_(!with.out.empty()),
        policy_(policy),
        scope_(policy.scope()),
        by_recency_(kv::to_string(policy).find("then=recency") != std::string::npos),
        segments_(segments),
        entries_(size(entries)),
        held_(size(segments)),
        dropped_(size(segments)),
        found_(to) {
    for (std::vector<int>& each : held_) each.reserve(entries_);
  }

  /// Later decisions leave the scores of what is not there any more, and of segments that lose nothing again.
  void keep_scores() { keeps_scores_ = true; }

  /// The entries that each segment holds.
  [[nodiscard]] std::vector<std::vector<int>> const& held() const { return held_; }

  void arrived(executor& exec, int from, int to) {
    auto const add = [&](int s, int) {
      std::vector<int>& each = held_[size(s)];
      each.resize(each.size() + size(to - from));
      std::iota(each.end() - (to - from), each.end(), from);
    };
    if (to - from > 1) return examples::host_of(exec).for_each(segments_, add);
    for (int s = 0; s < segments_; ++s) add(s, 0);
  }

  /// Records the plan's last decision. `event_step` is the number of the decode step, or negative.
  void note(executor& exec, kv::plan<executor>& plan, int event_step) {
    kv::keep_set const& keep = plan.keep();
    int const first = first_segment(policy_.decides(), keep.lanes);
    kv::report const& now = plan.report();
    if (now.triggered > 0) {
      if (first == 0) found_.report = {};
      found_.report.nan_scores += now.nan_scores;
      found_.report.forced_over_budget += now.forced_over_budget;
      if (writes_) note_scores(exec, plan, first);
    }
    for (int s = 0; s < keep.segments(); ++s) follow(keep, s, first + s, event_step);
  }

  /// The first segment of these layers.
  [[nodiscard]] static int first_segment(kv::granularity decides, kv::lanes const& batch) {
    if (decides == kv::granularity::lane) return batch.layer_begin * batch.heads;
    return decides == kv::granularity::layer ? batch.layer_begin : 0;
  }

  /// Ends the journal after the last decision.
  void close() {
    found_.keep.add(held_);
    if (!ranked_) found_.scores.clear();
  }

 private:
  static constexpr float lowest = -std::numeric_limits<float>::infinity();

  /// Writes the scores of the ranked entries: all dropped entries, and the kept ones that are not forced. The cost
  /// depends on the entries that are held, not on the trace, because only the entries that the decision before dropped
  /// have to be cleared.
  void note_scores(executor& exec, kv::plan<executor>& plan, int first) {
    kv::keep_set const& keep = plan.keep();
    bool const all = plan.report().triggered == keep.segments();
    if (found_.scores.empty()) found_.scores.assign(size(segments_) * entries_, lowest);
    if (first == 0) ranked_ = false;
    std::atomic<bool> any{false};
    examples::host_of(exec).for_each(keep.segments(), [&](int s, int) {
      if (note_row(plan, s, first + s, !all && idle(keep, s))) any = true;
    });
    ranked_ = ranked_ || any;
  }

  /// True if nothing was dropped from a segment and from those with which it shares a budget, so nothing was ranked.
  [[nodiscard]] bool idle(kv::keep_set const& keep, int s) const {
    int const pools = scope_ == kv::budget_scope::lane    ? keep.segments()
                      : scope_ == kv::budget_scope::layer ? keep.lanes.layers()
                                                          : 1;
    int const pool = std::max(1, keep.segments() / pools);
    for (int i = s / pool * pool; i < (s / pool + 1) * pool; ++i) {
      if (std::ssize(keep.listed(i)) < keep.entry_count[i]) return false;
    }
    return true;
  }

  bool note_row(kv::plan<executor>& plan, int s, int segment, bool idle) {
    kv::keep_set const& keep = plan.keep();
    std::vector<int> const& entry = held_[size(segment)];
    float* const to = found_.scores.data() + size(segment) * entries_;
    float const* const from = plan.scores(keep.lanes).row(s);
    for (int const gone : std::exchange(dropped_[size(segment)], {})) to[gone] = lowest;
    auto const kept = keep.listed(s);
    std::int64_t unranked = 0;
    if (idle && keeps_scores_ && entry.size() < entries_) return true;
    if (idle) {
      for (int const each : entry) to[each] = lowest;
      return false;
    }
    for (int e = 0; e < keep.entry_count[s]; ++e) {
      bool const is_ordinal = by_recency_ && std::isfinite(from[e]);  // then of the trace, not of what was left
      to[entry[size(e)]] = is_ordinal ? static_cast<float>(entry[size(e)]) : from[e];
    }
    for (int const e : kept) {
      if (!kv::forces(policy_, plan, s, e)) continue;
      to[entry[size(e)]] = lowest;
      ++unranked;
    }
    if (how_ != mode::prefill) each_dropped(keep, s, [&](int e) { dropped_[size(segment)].push_back(entry[size(e)]); });
    return unranked < keep.entry_count[s];
  }

  template <class Visit>
  static void each_dropped(kv::keep_set const& keep, int s, Visit const& visit) {
    int e = 0;
    for (int const kept : keep.listed(s)) {
      for (; e < kept; ++e) visit(e);
      ++e;
    }
    for (; e < keep.entry_count[s]; ++e) visit(e);
  }

  /// Removes the entries that the plan drops, and records them as events of a step.
  void follow(kv::keep_set const& keep, int s, int segment, int event_step) {
    std::vector<int>& held = held_[size(segment)];
    if (event_step >= 0) {
      each_dropped(keep, s, [&](int e) {
        for (std::int64_t const value : {event_step, segment, held[size(e)]}) found_.events.push_back(value);
      });
    }
    std::size_t to = 0;
    for (int const e : keep.listed(s)) held[to++] = held[size(e)];
    held.resize(to);
  }

  mode how_;
  bool writes_;  ///< the scores will be written to a file
  any_policy const& policy_;
  kv::budget_scope scope_;
  bool by_recency_;  ///< entries that are not put first have their ordinal as score
  int segments_;
  std::size_t entries_;
  std::vector<std::vector<int>> held_;     ///< the trace's ordinals of each segment's entries
  std::vector<std::vector<int>> dropped_;  ///< the entries that the last decision with scores dropped
  bool keeps_scores_ = false;
  bool ranked_ = false;  ///< there is at least one score
  results& found_;
};

}  // namespace kvreplay
