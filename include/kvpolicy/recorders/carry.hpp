// SPDX-License-Identifier: Apache-2.0
// Recorder: keeps one number of each entry, which is known when the entry is written.
#pragma once

#include <array>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/append_column.hpp>

namespace KVPOLICY_NAMESPACE {

/// Keeps the number of the signal `Of` that the engine gives when it appends an entry, in float32, and provides it as
/// the signal `As`.
/// The number moves with its entry and is never computed again. `Of` derives from `entry_numbers`; `As` has a `by_lane`
/// of floats as its first member.
///
///     using record_gate = kv::carry<kv::gate, kv::admission_gate>;
///
/// Memory: four bytes an entry.
template <class Of, class As>
struct carry {
  using needs = kvpolicy::needs<Of>;
  using provides = As;
  static constexpr bool known_at_append = true;

  [[nodiscard]] static std::array<column, 1> columns(shape const&, int) {
    return {column{Of::name, column_extent::lane_entry, on_move::permute, sizeof(float)}};
  }
  [[nodiscard]] static As view(recorded_columns const& recorded) { return {recorded.template table<float const>(0)}; }

  void observe(auto& exec, auto const& in, recorded_columns const& recorded) const {
    ops::append_column(exec, in.lanes, in.template get<Of>(), recorded.template table<float>(0));
  }

  friend bool operator==(carry const&, carry const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
