// SPDX-License-Identifier: Apache-2.0
// Runs of layers that read the same pages: the first layer of a run chooses.
#pragma once

#include <kvpolicy/core/lanes.hpp>

namespace KVPOLICY_NAMESPACE {

/// The layers behind the first `dense` ones in runs of `length` layers; the last run may be shorter. A run of one layer
/// is a layer that chooses for itself.
struct layer_runs {
  int dense = 0;
  int length = 1;

  /// The first layer of the run that a layer is in: `layer - (layer - dense) % length`. A dense layer is alone.
  [[nodiscard]] KVPOLICY_HD constexpr int first_of(int layer) const {
    return layer < dense ? layer : layer - (layer - dense) % length;
  }
  /// The lane of the same head in that layer.
  [[nodiscard]] KVPOLICY_HD constexpr lane chooser_of(lane one) const {
    return {one.sequence, first_of(one.layer), one.head};
  }
  /// The end of the run that a layer behind the dense ones is in, at most `end`.
  [[nodiscard]] constexpr int end_of(int layer, int end) const {
    int const first = first_of(layer);
    return end - first <= length ? end : first + length;
  }
};

}  // namespace KVPOLICY_NAMESPACE
