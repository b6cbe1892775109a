// Recorder: keeps the retention of each entry, which is predicted when the entry is appended.
#pragma once

#include <array>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/append_column.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: the log of the retention of each new entry of a lane. A model's gate computes it by `logsigmoid` in float32:
/// in bf16 the sigmoid of 7 or more rounds to 1, and its log is 0.
struct log_beta : entry_numbers {
  static constexpr auto name = "log_beta";
};

/// Signal: the log of the retention of every entry in the cache.
struct retention {
  static constexpr auto name = "retention";
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
struct record_retention {
  using needs = kvpolicy::needs<log_beta>;
  using provides = retention;
  static constexpr bool from_birth = true;

  [[nodiscard]] static std::array<column, 1> columns(shape const&, int) {
    return {column{"log_beta", per::lane_entry, on_move::permute, sizeof(float)}};
  }
  [[nodiscard]] static retention view(recorded_columns const& recorded) { return {recorded.table<float const>(0)}; }

  void observe(auto& exec, auto const& in, recorded_columns const& recorded) const {
    ops::append_column(exec, in.lanes, in.template get<log_beta>(), recorded.table<float>(0));
  }

  friend bool operator==(record_retention const&, record_retention const&) = default;
};
static_assert(recorder<record_retention>);

}  // namespace KVPOLICY_NAMESPACE
