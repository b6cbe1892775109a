// SPDX-License-Identifier: Apache-2.0
// The attention of several lanes whose query heads are all reduced before the rows.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/attention/lane_probabilities.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// One of the lanes, which take the same memory in turn: some rows of all of them, then the next ones.
class lane_heads : lane_probabilities {
 public:
  using lane_probabilities::lane_probabilities;

  static constexpr int rows_at_once = 16;
  [[nodiscard]] int rows() const { return count_; }
  void clear() { std::fill_n(entry_numbers(), entries_, 0.0f); }
  [[nodiscard]] float const* mass() { return entry_numbers(); }

  /// Reduces the heads of rows [first, first + rows_at_once) with those of the lanes before; the last lane reduces
  /// these rows as `how` says to the mass.
  void take(reduction how, int first, bool is_first, bool is_last) {
    row_block block = first_block(rows_at_once);
    float* const combined = combine_heads(block, first, std::min(rows_at_once, count_ - first), !is_first);
    if (is_last) reduce(block, combined, how, first > 0, entry_numbers());
  }
  /// Divides the mass by a number of values of which it is the mean.
  void divide(int by) {
    for (int e = 0; e < entries_ && by > 1; ++e) entry_numbers()[e] /= static_cast<float>(by);
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
