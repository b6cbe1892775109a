// SPDX-License-Identifier: Apache-2.0
// Recorder: keeps the write gate of each entry, which is computed when the entry is appended.
#pragma once

#include <array>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/recorders/carry.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: the write gate of each new entry of a lane, from 0 to 1. The gate of a model computes it.
struct gate : entry_numbers {
  static constexpr auto name = "gate";
};

/// Signal: the write gate of every entry in the cache.
struct admission_gate {
  static constexpr auto name = "admission_gate";
  static constexpr auto tensor = "gate";
  by_lane<float const> gate{};
  /// True if a gate was recorded for any entry of a lane.
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& among, lane this_lane) const {
    return detail::any_recorded(gate.row(this_lane), among.committed(this_lane));
  }
  void check(char const* call, shape const&) const { detail::check_numbers_given(call, name, gate); }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_lane_strides(call, name, gate, batch);
  }
};

/// Keeps the gate of each entry in float32. The gate is computed when the entry is written, and read when the entry
/// leaves its window (WG-KV, arXiv:2512.17452). An engine may also compute the gates of a whole window later, before
/// any of its entries leaves.
using record_gate = carry<gate, admission_gate>;

}  // namespace KVPOLICY_NAMESPACE
