// SPDX-License-Identifier: Apache-2.0
// Recorder: keeps the norm of each key, which never changes after the key was written.
#pragma once

#include <array>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/row_norm.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: the negated norm of the key of every entry in the cache, float32.
struct key_norms {
  static constexpr auto name = "key_norms";
  by_lane<float const> negated{};
  /// True if a norm was recorded for any entry of a lane.
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& among, lane this_lane) const {
    return detail::any_recorded(negated.row(this_lane), among.committed(this_lane));
  }
  void check(char const* call, shape const&) const { detail::check_numbers_given(call, name, negated); }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_lane_strides(call, name, negated, batch);
  }
};

/// Reads each key once, in the `observe` after its `append`, and keeps its norm, which then moves with the entry. So a
/// decision reads four bytes of an entry instead of its whole key.
struct record_key_norms {
  using needs = kvpolicy::needs<keys>;
  using provides = key_norms;
  static constexpr bool of_entries = true;

  [[nodiscard]] static std::array<column, 1> columns(shape const&, int) {
    return {column{"negated_norm", column_extent::lane_entry, on_move::permute, sizeof(float)}};
  }
  [[nodiscard]] static key_norms view(recorded_columns const& recorded) { return {recorded.table<float const>(0)}; }

  void observe(auto& exec, auto const& in, recorded_columns const& recorded) const {
    ops::record_norms(exec, in.template get<keys>(), score_view{in.lanes, granularity::lane, recorded.table<float>(0)});
  }

  friend bool operator==(record_key_norms const&, record_key_norms const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
