// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention.hpp"
#include "basics.hpp"
#include "selection.hpp"

namespace kvpolicy_reference {

/// What one forward adds to H2O's accumulated scores: every row summed, and the heads of the group summed too, because
/// the score is an accumulation.
inline row h2o_mass(lane_attention const& lane) {
  return attention_mass(lane, {.rows = reduction::sum, .group = reduction::sum});
}

/// H2O, real drop: one lane that accumulates the attention each entry receives and keeps the heaviest `heavy` besides
/// the last `recent`.
class h2o_lane {
 public:
  h2o_lane(int heavy, int recent) : heavy_{heavy}, recent_{recent} {
    require(heavy >= 0 && recent >= 0, "H2O takes counts");
  }

  /// After a forward, whether prefill or step: `mass` has one value per entry of the current cache, the new ones at the
  /// end. Adds it (new entries start from their own columns), then drops if there are strictly more than heavy +
  /// recent. Returns the ordinals kept, counted before the drop.
  std::vector<int> step(row const& mass) {
    require(mass.size() >= accumulated_.size(), "a forward adds entries, it does not remove any");
    accumulated_.resize(mass.size(), 0.0);
    for (std::size_t j = 0; j < mass.size(); ++j) accumulated_[j] += mass[j];
    before_drop_ = accumulated_;
    flags const recent = ends(static_cast<int>(mass.size()), 0, recent_);
    std::vector<int> const kept = select(accumulated_, recent, heavy_ + recent_).kept;
    row gathered;
    for (int const ordinal : kept) gathered.push_back(accumulated_[static_cast<std::size_t>(ordinal)]);
    accumulated_ = gathered;
    return kept;
  }

  /// Of the entries that are left.
  row const& accumulated() const { return accumulated_; }

  /// Of all entries that the last step decided about.
  row const& accumulated_before_drop() const { return before_drop_; }

 private:
  int heavy_;
  int recent_;
  row accumulated_;
  row before_drop_;
};

/// H2O, masked simulation: nothing is freed, a mask hides entries from the next step.
struct h2o_mask {
  std::vector<int> visible;  ///< what the next step may read; its own position is the last, accumulated.size()
  row accumulated;           ///< scores after the hidden entries were zeroed
};

/// The mask for the step after this one. The recent window slides on already, so the entry that leaves it is neither
/// recent nor a candidate: hidden for one step, its score kept, free to return.
inline h2o_mask h2o_masked(row const& accumulated, int heavy, int recent) {
  require(recent >= 1, "the masked variant needs a recent window");
  int const count = static_cast<int>(accumulated.size());
  h2o_mask result{every_ordinal(accumulated.size() + 1), accumulated};
  if (count <= heavy + recent) return result;
  row const candidates(accumulated.begin(), accumulated.end() - recent);
  result.visible = select(candidates, flags(candidates.size(), false), heavy).kept;
  for (int j = 0; j < count - recent; ++j) {
    bool const hidden = std::find(result.visible.begin(), result.visible.end(), j) == result.visible.end();
    if (hidden) result.accumulated[static_cast<std::size_t>(j)] = 0.0;
  }
  for (int j = count + 1 - recent; j <= count; ++j) result.visible.push_back(j);
  return result;
}

}  // namespace kvpolicy_reference
