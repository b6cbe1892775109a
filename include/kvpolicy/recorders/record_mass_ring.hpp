// SPDX-License-Identifier: Apache-2.0
// Recorder: keeps the attention that each entry has received from each of the last query rows.
#pragma once

#include <array>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/map_lanes.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/ops/visit_attention.hpp>

namespace KVPOLICY_NAMESPACE {

/// Signal: for each entry, what it received from the last `rows` query rows of its lane, in any order; 0 from rows
/// before it.
struct mass_ring {
  static constexpr auto name = "mass_ring";
  static constexpr auto tensor = "queries";
  by_lane<float const> masses{};  ///< `rows` numbers for each entry
  int rows = 0;
  [[nodiscard]] KVPOLICY_HD bool observed(lanes const& among, lane this_lane) const {
    return detail::any_recorded(masses.row(this_lane), among.committed(this_lane) * rows);
  }
  void check(char const* call, shape const&) const { detail::check_numbers_given(call, name, masses); }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_lane_strides(call, name, masses, batch);
  }
};

/// Keeps the attention of each of the last `rows` query rows as it was when the row was observed: 4 bytes of an entry
/// for each, which move with it. So 32 rows take as much as a quarter of a bf16 entry of 128 channels, keys and values.
struct record_mass_ring {
  int rows = 32;
  reduction group = reduction::sum;  ///< how the query heads of a KV head are reduced

  using needs = kvpolicy::needs<keys, queries>;
  using provides = mass_ring;
  using verbs = kvpolicy::verbs<ops::visit_attention_t>;

  [[nodiscard]] std::array<column, 2> columns(shape const&, int) const {
    int const bytes = rows * static_cast<int>(sizeof(float));
    return {column{"mass_ring", column_extent::lane_entry, on_move::permute, bytes},
            column{"mass_ring.next", column_extent::lane, on_move::stay, sizeof(int), 1}};
  }
  [[nodiscard]] mass_ring view(recorded_columns const& recorded) const {
    return {recorded.table<float const>(0), rows};
  }

  /// Keeps what a row gives to an entry.
  struct put {
    by_lane<float> masses;
    by_lane<int> next;  ///< the place of the next row
    int rows;
    KVPOLICY_HD void operator()(float mass, attention_row const& row, entry const& at) const {
      std::int64_t const place = (*next.row(at.lane) + row.index) % rows;
      masses.row(at.lane)[std::int64_t{at.ordinal} * rows + place] = mass;
    }
  };
  /// The place after the rows of a forward. Rows after the newest committed token, which are those of drafts, have no
  /// place: they are shown again when their tokens are committed.
  struct advance {
    by_lane<int> next;
    query_view of;
    lanes batch;
    int rows;
    KVPOLICY_HD int operator()(lane_entries const& lane) const {
      int fresh = of.rows == 0 ? 0 : of.valid(lane.lane);
      int const newest = batch.newest(lane.lane);
      while (fresh > 0 && of.position.row(lane.lane)[of.stored(lane.lane, fresh - 1)] > newest) --fresh;
      return (*next.row(lane.lane) + fresh) % rows;
    }
  };
  void observe(auto& exec, auto const& in, recorded_columns const& recorded) const {
    queries const& fresh = in.template get<queries>();
    by_lane<int> const next = recorded.table<int>(1);
    ops::visit_attention(exec, in.lanes, in.template get<keys>(), fresh, {.group = group, .last_rows = rows},
                         put{recorded.table<float>(0), next, rows});
    ops::map_lanes(exec, in.lanes, advance{next, fresh, in.lanes, rows}, next);
  }

  friend bool operator==(record_mass_ring const&, record_mass_ring const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
