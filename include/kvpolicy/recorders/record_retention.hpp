// Recorder: the retention that each entry was born with.
#pragma once

#include <array>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/append_column.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: log of the retention of each new entry of a lane, as a model's gate gives it (`logsigmoid`, in float32:
/// sigmoid of a bf16 number is 1 from 7 on, and its log 0).
struct log_beta : entry_numbers {
  static constexpr auto name = "log_beta";
};

/// Signal: the same of every entry that is there.
struct retention {
  static constexpr auto name = "retention";
  by_lane<float const> log_beta{};
  /// True if any entry of a lane was told its log beta.
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& among, lane this_lane) const {
    return detail::any_recorded(log_beta.row(this_lane), among.committed(this_lane));
  }
  void check(char const* call, shape const&) const { detail::check_numbers_given(call, name, log_beta); }
};

/// Keeps log beta beside each entry, in float32; it moves with it and is never made again (TRIM-KV, arXiv:2512.03324).
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
