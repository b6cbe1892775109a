// SPDX-License-Identifier: Apache-2.0
// Recorder: keeps when each entry was last attended to, and the longest time between two such rows.
#pragma once

#include <array>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/ops/visit_attention.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: when each entry received attention.
struct stamps {
  static constexpr auto name = "stamps";
  static constexpr auto tensor = "queries";
  by_lane<int const> last{};      ///< 1 + the position of the last row that attended to the entry; at first of its own
  by_lane<int const> interval{};  ///< the most positions between two such rows
  /// True if a row was observed after any entry of a lane was there. Mostly the first one says so.
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& among, lane this_lane) const {
    int const* const row = last.row(this_lane);
    for (int e = 0; e < among.committed(this_lane); ++e) {
      if (row[e] != 0) return true;
    }
    return false;
  }
  void check(char const* call, shape const&) const {
    detail::check_numbers_given(call, name, last);
    detail::check_numbers_given(call, name, interval);
  }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_lane_strides(call, name, last, batch);
    detail::check_lane_strides(call, name, interval, batch);
  }
};

/// Keeps the stamps of every entry: 8 bytes, which move with it. A row attends to an entry if the entry's attention,
/// reduced over the query heads of the lane, is at least `alpha`. Stamps are positions, so that they do not fit
/// re-rotated keys.
struct record_stamps {
  float alpha = 0.01f;
  reduction group = reduction::mean;

  using needs = kvpolicy::needs<keys, queries>;
  using provides = stamps;
  using verbs = kvpolicy::verbs<ops::visit_attention_t>;

  [[nodiscard]] static std::array<column, 2> columns(shape const&, int) {
    return {column{"stamps.last", column_extent::lane_entry, on_move::permute, sizeof(int)},
            column{"stamps.interval", column_extent::lane_entry, on_move::permute, sizeof(int)}};
  }
  [[nodiscard]] static stamps view(recorded_columns const& recorded) {
    return {recorded.table<int const>(0), recorded.table<int const>(1)};
  }

  /// Stamps an entry that a row attends to.
  struct stamp {
    by_lane<int> last, interval;
    float alpha;
    KVPOLICY_HD void operator()(float mass, attention_row const& row, entry const& at) const {
      int& before = last.row(at.lane)[at.ordinal];
      int& longest = interval.row(at.lane)[at.ordinal];
      if (before == 0) before = at.position + 1;
      if (!(mass >= alpha)) return;
      int const apart = row.position + 1 - before;
      longest = apart > longest ? apart : longest;
      before = row.position + 1;
    }
  };
  void observe(auto& exec, auto const& in, recorded_columns const& recorded) const {
    ops::visit_attention(exec, in.lanes, in.template get<keys>(), in.template get<queries>(), {.group = group},
                         stamp{recorded.table<int>(0), recorded.table<int>(1), alpha});
  }

  friend bool operator==(record_stamps const&, record_stamps const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
