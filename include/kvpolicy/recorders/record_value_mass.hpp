// SPDX-License-Identifier: Apache-2.0
// Recorder: sums what each entry's value contributes to what query rows read.
#pragma once

#include <array>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/add_shares.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/map_lanes.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/ops/scratch.hpp>

namespace KVPOLICY_NAMESPACE {

/// Adds up the attention that each entry receives from every new query row, weighted by the norm of the entry's value.
/// The sum over all entries of a row stays as it is.
///
///     m_j     = softmax(q k / sqrt(D))_j, reduced over the query heads of the lane by `group`
///     acc_j += (sum of m) m_j |v_j| / (sum of m |v|)
///
/// It keeps three numbers of an entry: the sum, the norm of its value, which is computed once, and the row at work. It
/// takes one row after another, so that a prompt of P rows costs P masses of one row. The masses are the signal
/// `attention_mass`.
struct record_value_mass {
  reduction group = reduction::sum;

  using needs = kvpolicy::needs<keys, values, queries>;
  using provides = attention_mass;
  using verbs = kvpolicy::verbs<ops::compute_attention_mass_t>;

  [[nodiscard]] static std::array<column, 4> columns(shape const&, int) {
    int const bytes = sizeof(float);
    return {column{"value_mass", column_extent::lane_entry, on_move::permute, bytes},
            column{"value_mass.norm", column_extent::lane_entry, on_move::permute, bytes},
            column{"value_mass.row", column_extent::lane_entry, on_move::stay, bytes},
            column{"value_mass.at", column_extent::lane, on_move::stay, 2 * sizeof(int), 1}};
  }
  [[nodiscard]] static attention_mass view(recorded_columns const& recorded) {
    return {recorded.table<float const>(0)};
  }

  /// Rows that it was not shown are missing in the sums, unless the engine gives these.
  [[nodiscard]] static bool sums_rows([[maybe_unused]] auto const& in) {
    if constexpr (kvpolicy::provides<std::remove_cvref_t<decltype(in)>, attention_mass>) {
      return in.template find<attention_mass>() == nullptr;
    } else {
      return true;
    }
  }

  /// 1 if a lane has a row of this index; 0 if not.
  struct has_row {
    query_view rows;
    int index;
    KVPOLICY_HD int operator()(lane_entries const& of) const { return rows.valid(of.lane) > index ? 1 : 0; }
  };
  /// Where that row is stored, which may be a ring.
  struct stored_row {
    query_view rows;
    int index;
    KVPOLICY_HD int operator()(lane_entries const& of) const {
      return rows.valid(of.lane) > index ? rows.stored(of.lane, index) : 0;
    }
  };
  void observe(auto& exec, auto const& in, recorded_columns const& recorded) const {
    query_view const rows = in.template get<queries>();
    by_lane<float> const norms = recorded.table<float>(1);
    score_view const row{in.lanes, granularity::lane, recorded.table<float>(2)};
    by_lane<int> const valid = recorded.table<int>(3);
    by_lane<int> stored = valid;
    stored.data += 1;
    query_view one = rows;
    one.valid_rows = read_only(valid);
    one.counted = read_only(stored);
    one.first_row = {};
    ops::record_norms(exec, in.template get<values>(), score_view{in.lanes, granularity::lane, norms});
    for (int r = 0; r < rows.rows; ++r) {
      ops::map_lanes(exec, in.lanes, has_row{rows, r}, valid);
      ops::map_lanes(exec, in.lanes, stored_row{rows, r}, stored);
      ops::compute_attention_mass(exec, in.template get<keys>(), one, {.rows = reduction::sum, .group = group}, row);
      ops::add_shares(exec, row, read_only(norms), recorded.table<float>(0));
    }
  }

  friend bool operator==(record_value_mass const&, record_value_mass const&) = default;

 private:
  template <class T>
  [[nodiscard]] static by_lane<T const> read_only(by_lane<T> const& of) {
    return {of.data, of.sequence, of.layer, of.head, of.slots};
  }
};

}  // namespace KVPOLICY_NAMESPACE
