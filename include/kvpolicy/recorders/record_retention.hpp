// SPDX-License-Identifier: Apache-2.0
// Recorder: keeps the retention of each entry, which is predicted when the entry is appended.
#pragma once

#include <array>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/recorders/carry.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: the log of the retention of each new entry of a lane. A model's gate computes it by `logsigmoid` in float32:
/// in bf16 the sigmoid of 7 or more rounds to 1, and its log is 0.
struct log_beta : entry_numbers {
  static constexpr auto name = "log_beta";
};

/// Signal: the log of the retention of every entry in the cache.
struct retention {
  static constexpr auto name = "retention";
  static constexpr auto tensor = "log_beta";
  by_lane<float const> log_beta{};
  /// True if a log beta was recorded for any entry of a lane.
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& among, lane this_lane) const {
    return detail::any_recorded(log_beta.row(this_lane), among.committed(this_lane));
  }
  void check(char const* call, shape const&) const { detail::check_numbers_given(call, name, log_beta); }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_lane_strides(call, name, log_beta, batch);
  }
};

/// Keeps the log beta of each entry in float32. It moves with its entry and is never computed again (TRIM-KV,
/// arXiv:2512.03324).
using record_retention = carry<log_beta, retention>;

}  // namespace KVPOLICY_NAMESPACE
