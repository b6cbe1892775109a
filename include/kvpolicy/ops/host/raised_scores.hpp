// Segments whose forced entries may be anywhere, decided by the passes over scores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/segment_keys.hpp>
#include <kvpolicy/ops/host/segment_runs.hpp>
#include <kvpolicy/ops/host/select.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::detail {

/// Lists what a segment keeps at `to`: its forced entries and the best of the others, `budget` entries in all. In a
/// copy of the scores, forced entries are raised to +inf: if the lowest kept score is finite, all of them are kept.
/// If that score is +inf or NaN, or nothing competes, it returns false, and the segment is still to be decided.
/// `counts` has the number of entries of each segment. `memory` holds a float for each of this one, and `to` an int.
template <class Rule>
[[nodiscard]] bool list_raised(host_executor const& exec, score_view const& scores, Rule const& rule, int segment,
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
