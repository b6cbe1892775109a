// SPDX-License-Identifier: Apache-2.0
// Segments that are decided by the passes over scores: the candidates are one range of entries, with forced entries
// around it, or the scores of forced entries are raised.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/select.hpp>
#include <kvpolicy/ops/top_k.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::detail {

/// Where a segment's ordinals are written, if they are moved afterwards.
[[nodiscard]] inline int* ordinals_of(score_view const& scores, int segment, keep_set const& keep) {
  return keep.indices + static_cast<std::int64_t>(segment) * scores.lanes.capacity;
}

/// Writes the ordinals of a range, and returns where it stopped.
inline int* list_range(ordinal_range of, int* to) {
  for (int e = of.begin; e < of.end; ++e) *to++ = e;
  return to;
}

/// The candidates among the first `count` entries of a segment. All others are forced.
template <class Rule>
[[nodiscard]] ordinal_range candidates_of(score_view const& scores, Rule const& rule, int segment, int count,
                                          int budget) {
  lane const this_lane = scores.lane_of(segment);
  ordinal_range free = rule.candidates(lane_entries{this_lane, count, budget, scores.lanes.position.row(this_lane)});
  free.begin = std::clamp(free.begin, 0, count);
  free.end = std::clamp(free.end, free.begin, count);
  return free;
}

/// What a segment with a budget of its own keeps: all entries, if nothing triggers; otherwise the forced entries and
/// the best candidates.
struct segment_run {
  int count = 0;
  int budget = 0;
  bool triggered = false;
  ordinal_range free{};  ///< the candidates; all other entries are forced

  [[nodiscard]] int candidates() const { return free.end - free.begin; }
  [[nodiscard]] int forced() const { return count - candidates(); }
  /// How many candidates it keeps.
  [[nodiscard]] int best() const { return std::clamp(budget - forced(), 0, candidates()); }
  [[nodiscard]] int kept() const { return triggered ? forced() + best() : count; }

  /// Writes the kept ordinals to `to`, and nothing after them. `temp_storage` has as many elements as there are
  /// candidates, and may be the memory after the first forced ordinals.
  void list(select_kernels const& kernels, float const* scores, std::uint32_t* temp_storage, int* to,
            row_prefetcher ahead, report& found) const {
    found.over_budget += kept() > budget ? 1 : 0;
    if (!triggered) {
      list_range({0, count}, to);
      return;
    }
    int const many = candidates();
    int const k = best();
    float const* const some = scores + free.begin;
    found.triggered += 1;
    found.forced_over_budget += forced() > budget ? 1 : 0;
    found_cut cut{{forced_key, 0}, 0};
    if (k > 0 && k < many) cut = find_cut(kernels, some, many, k, temp_storage, ahead);
    if (k == 0 || k == many) cut.nan = count_nan(some, many);
    found.nan_scores += cut.nan;
    int* next = list_range({0, free.begin}, to);
    if (k == many) {
      next = list_range(free, next);
    } else if (k > 0 && cut.at.lowest == nan_key) {
      std::transform(some, some + many, temp_storage, radix_key);
      next += emit_above(temp_storage, many, cut.at, next, free.begin);
    } else if (k > 0) {
      next += kernels.emit(some, many, free.begin, {score_of_key(cut.at.lowest), static_cast<int>(cut.at.ties), k},
                           next, ahead);
    }
    list_range({free.end, count}, next);
  }
};

/// The scores of the segment that a thread will probably decide after this one, or none.
[[nodiscard]] inline row_prefetcher row_after(score_view const& scores, int segment, int threads, int const* counts) {
  int const next = segment + threads < scores.segments() ? segment + threads : segment;
  return {scores.row(next), next == segment ? 0 : counts[next]};
}

template <class Rule>
[[nodiscard]] segment_run run_of(score_view const& scores, Rule const& rule, int segment, int count) {
  segment_run made{.count = count, .budget = rule.budget(scores.lane_of(segment), count)};
  made.triggered = rule.triggers(count, made.budget);
  if (made.triggered) made.free = candidates_of(scores, rule, segment, count, made.budget);
  return made;
}

/// Lists what a segment keeps at `to`: its forced entries and the best of the others, `budget` entries in all. In a
/// copy of the scores, forced entries are raised to +inf: if the lowest kept score is finite, all of them are kept.
/// If that score is +inf or NaN, or nothing competes, it returns false, and the segment is still to be decided.
/// `counts` has the number of entries of each segment. `memory` holds a float for each of this one, and `to` an int.
template <class Rule>
[[nodiscard]] bool list_forced(host_executor const& exec, score_view const& scores, Rule const& rule, int segment,
                               int budget, int const* counts, std::span<std::byte> memory, int* to, report& found) {
  lane const this_lane = scores.lane_of(segment);
  int const count = scores.lanes.committed(this_lane);
  if (budget <= 0 || budget >= count) return false;
  float* const copy = scratch_arena(memory).take<float>(static_cast<std::size_t>(count));
  std::memcpy(copy, scores.row(segment), static_cast<std::size_t>(count) * sizeof(float));
  int raised = 0;  // at least as many as are forced: one may be visited twice
  visit_forced_of(scores, rule, {this_lane, count, budget, scores.lanes.position.row(this_lane)}, [&](int e) {
    copy[e] = score_of_key(infinite_key);
    ++raised;
  });
  if (raised >= budget) return false;
  select_kernels const& kernels = select_of_isa[exec.simd_level()];
  row_prefetcher ahead = row_after(scores, segment, exec.threads(), counts);
  found_cut const cut = find_cut(kernels, copy, count, budget, reinterpret_cast<std::uint32_t*>(to), ahead);
  if (cut.at.lowest == nan_key || cut.at.lowest == infinite_key) return false;
  kernels.emit(copy, count, 0, {score_of_key(cut.at.lowest), static_cast<int>(cut.at.ties), budget}, to, ahead);
  found.nan_scores += cut.nan;
  return true;
}

}  // namespace KVPOLICY_NAMESPACE::detail
