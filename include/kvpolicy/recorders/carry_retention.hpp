// Recorder: the retention that each entry was born with.
#pragma once

#include <array>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/carry_numbers.hpp>

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
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& among, lane who) const {
    return detail::any_recorded(log_beta.row(who), among.committed(who));
  }
  void check(char const* call, shape const&) const { detail::check_numbers_given(call, name, log_beta); }
};

/// Keeps log beta beside each entry, in float32; it moves with it and is never made again (TRIM-KV, arXiv:2512.03324).
struct carry_retention {
  using needs = kvpolicy::needs<log_beta>;
  using provides = retention;
  static constexpr bool from_birth = true;

  [[nodiscard]] static std::array<column, 1> columns(shape const&, int) {
    return {column{"log_beta", per::lane_entry, on_move::permute, sizeof(float)}};
  }
  [[nodiscard]] static retention view(held_columns const& held) { return {held.table<float const>(0)}; }

  void observe(auto& exec, auto const& in, held_columns const& held) const {
    ops::carry_numbers(exec, in.who, in.template get<log_beta>(), held.table<float>(0));
  }

  friend bool operator==(carry_retention const&, carry_retention const&) = default;
};
static_assert(recorder<carry_retention>);

}  // namespace KVPOLICY_NAMESPACE
