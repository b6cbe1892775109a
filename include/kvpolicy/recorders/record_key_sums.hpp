// SPDX-License-Identifier: Apache-2.0
// Recorder: keeps the sum of each token's keys over all layers and heads.
#pragma once

#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/key_sums.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// Reads each key once, in the `observe` after its `append`, so that an event of IntentKV's residual head does not read
/// all keys for their means (arXiv:2606.09916, section 3.3).
///
/// It records if `observe` is given keys and all layers of a sequence; `feature_sums` computes what was not recorded.
/// It takes 4 bytes an entry and lane, if a model has at least as many lanes as channels.
struct record_key_sums {
  bool on = true;  ///< false: nothing is kept

  using needs = kvpolicy::needs<>;
  using provides = key_sums;
  using verbs = kvpolicy::verbs<ops::record_key_sums_t>;

  [[nodiscard]] std::vector<column> columns(shape const& model, int) const {
    if (!on) return {};
    int const bytes = key_sums::channels_of_a_lane(model) * static_cast<int>(sizeof(float));
    return {column{"key_sums", column_extent::lane_entry, on_move::permute, bytes}};
  }
  [[nodiscard]] key_sums view(recorded_columns const& recorded) const {
    if (!on) return {};
    by_lane<float> const channels = recorded.table<float>(0);
    int const layers = channels.layer == 0 ? 1 : static_cast<int>(channels.sequence / channels.layer);
    return {channels, key_sums::channels_of_a_lane(recorded.model), layers};
  }

  void observe(auto& exec, auto const& in, recorded_columns const& recorded) const {
    if (!on) return;
    if (keys const* const given = in.template find<keys>(); given != nullptr) {
      ops::record_key_sums(exec, *given, in.lanes, view(recorded));
    }
  }

  friend bool operator==(record_key_sums const&, record_key_sums const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
