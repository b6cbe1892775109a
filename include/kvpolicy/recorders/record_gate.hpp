// Recorder: the write gate that each entry was born with.
#pragma once

#include <array>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/append_column.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: the write gate of each new entry of a lane, from 0 to 1, as a model's gate gives it.
struct gate : entry_numbers {
  static constexpr auto name = "gate";
};

/// Signal: the same of every entry that is there.
struct admission_gate {
  static constexpr auto name = "admission_gate";
  by_lane<float const> gate{};
  /// True if any entry of a lane was told its gate.
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& among, lane this_lane) const {
    return detail::any_recorded(gate.row(this_lane), among.committed(this_lane));
  }
  void check(char const* call, shape const&) const { detail::check_numbers_given(call, name, gate); }
};

/// Keeps the gate beside each entry, in float32: it is computed at the write, and asked when the entry leaves its
/// window (WG-KV, arXiv:2512.17452). An engine may compute gates later, a window's at once, before any of it leaves.
struct record_gate {
  using needs = kvpolicy::needs<gate>;
  using provides = admission_gate;
  static constexpr bool from_birth = true;

  [[nodiscard]] static std::array<column, 1> columns(shape const&, int) {
    return {column{"gate", per::lane_entry, on_move::permute, sizeof(float)}};
  }
  [[nodiscard]] static admission_gate view(recorded_columns const& recorded) {
    return {recorded.table<float const>(0)};
  }

  void observe(auto& exec, auto const& in, recorded_columns const& recorded) const {
    ops::append_column(exec, in.lanes, in.template get<gate>(), recorded.table<float>(0));
  }

  friend bool operator==(record_gate const&, record_gate const&) = default;
};
static_assert(recorder<record_gate>);

}  // namespace KVPOLICY_NAMESPACE
