// SPDX-License-Identifier: Apache-2.0
// What one segment keeps by a budget of its own: how many entries, which, and what is reported of it.
#pragma once

#include <kvpolicy/ops/cuda/select/emit.hpp>
#include <kvpolicy/ops/cuda/select/list.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// What one segment has to select, and what is counted and reported of it.
struct segment_outcome {
  segment_choice choice;
  int kept;
  bool fires;
  bool forced_over;  ///< the forced entries exceed the budget
  bool over;         ///< the kept entries exceed the budget

  /// The outcome for a segment with `forced` forced entries. If its rule does not fire, it keeps all entries.
  template <class Rule>
  [[nodiscard]] KVPOLICY_HD static segment_outcome of(segment_keys<Rule> const& keys, bool fires, int forced) {
    int const count = keys.count();
    int const budget = keys.about.budget;
    if (!fires) return {{0, count, -1, count}, count, false, false, count > budget};
    int const left = budget < forced ? 0 : budget - forced;
    int const k = left < count - forced ? left : count - forced;
    bool const over = forced + k > budget;
    return {{keys.begin, keys.end, k, count - forced}, forced + k, true, forced > budget, over};
  }
  /// Bit 0 of the second number says that the forced entries exceed the budget, bit 1 that the kept entries exceed it.
  [[nodiscard]] KVPOLICY_HD std::int64_t packed(bool unobserved) const {
    return packed_result::of(kept, (forced_over ? 1 : 0) + (over ? 2 : 0), fires, unobserved).word;
  }
};

/// Offsets and report of top_k. `aux_count` of a result has two bits: bit 0 says that the forced entries exceed the
/// budget, bit 1 that the kept entries exceed it.
struct finalize_top_k {
  [[nodiscard]] KVPOLICY_HD int number(packed_result result) const { return result.listed(); }
  KVPOLICY_HD void place(packed_result result, segment_place, report& found) const {
    found.forced_over_budget += result.aux_count() & 1;
    found.over_budget += result.aux_count() >> 1;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
