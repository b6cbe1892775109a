// SPDX-License-Identifier: Apache-2.0
// Recorder: keeps a number that the engine gives when it appends an entry.
#pragma once

#include <array>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/append_column.hpp>
#include <kvpolicy/ops/map.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: a number of each new entry of a lane, by which the engine or a model beside it predicts how long the entry
/// will be of use.
struct birth_score : entry_numbers {
  static constexpr auto name = "birth_score";
};

/// Signal: that number of every entry in the cache.
struct carried_score {
  static constexpr auto name = "carried_score";
  static constexpr auto tensor = "birth.NAME";
  by_lane<float const> score{};
  /// True if a number was recorded for any entry of a lane.
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& among, lane this_lane) const {
    return detail::any_recorded(score.row(this_lane), among.committed(this_lane));
  }
  void check(char const* call, shape const&) const { detail::check_numbers_given(call, name, score); }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_lane_strides(call, name, score, batch);
  }
};

/// Keeps the number of each entry in float32. It moves with its entry. With a `decay` other than 1 every `observe`,
/// which is then one of a turn, first multiplies the numbers of older entries by it.
struct record_birth_score {
  float decay = 1;

  using needs = kvpolicy::needs<birth_score>;
  using provides = carried_score;
  static constexpr bool known_at_append = true;

  [[nodiscard]] static std::array<column, 1> columns(shape const&, int) {
    return {column{"birth_score", column_extent::lane_entry, on_move::permute, sizeof(float)}};
  }
  [[nodiscard]] static carried_score view(recorded_columns const& recorded) { return {recorded.table<float const>(0)}; }

  /// A number that was recorded stays one: where it becomes too small for a float, it is -0, as a recorded 0 is.
  /// Where drafts are in flight and no other number is given, nothing is observed, and nothing decays.
  struct decayed {
    float by;
    entry_numbers given;
    lanes batch;
    by_lane<float> column;
    KVPOLICY_HD float operator()(float old, entry at) const {
      bool const in_flight = batch.in_flight != nullptr && *batch.drafts(at.lane.sequence) > 0;
      if (in_flight && detail::counted_numbers(batch, given, column, at.lane) == 0) return old;
      float const now = old * by;
      return now == 0 && old != 0 ? -0.0f : now;
    }
  };

  void observe(auto& exec, auto const& in, recorded_columns const& recorded) const {
    if (decay != 1) {
      ops::map(exec, score_view{in.lanes, granularity::lane, recorded.table<float>(0)},
               decayed{decay, in.template get<birth_score>(), in.lanes, recorded.table<float>(0)});
    }
    ops::append_column(exec, in.lanes, in.template get<birth_score>(), recorded.table<float>(0));
  }

  friend bool operator==(record_birth_score const&, record_birth_score const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
