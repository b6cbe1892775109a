// SPDX-License-Identifier: Apache-2.0
// An allotter that goes by a table of the model, to a power.
#pragma once

#include <cmath>
#include <kvpolicy/core/label.hpp>
#include <kvpolicy/parts/proportional.hpp>
#include <kvpolicy/parts/shared_out.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {
/// The weight of a layer, one number for each of its lanes.
struct weight_in_rows {
  by_lane<float> numbers;
  KVPOLICY_HD float operator()(lane of) const { return numbers.row(of)[0]; }
};
}  // namespace detail

/// Shares of layers in proportion to a number of each layer to a power, such as how much its keys drift when the prompt
/// is read in blocks (EpiCache, Kim et al. 2025, arXiv:2509.17396). The lanes of a layer share what it has.
///
///     share of layer l = floor H B + its part of the rest of L H B in proportion to table_l^power
///
/// B is the budget of a lane, H the lanes of a layer, L the layers. A layer has at most all of its entries, and the
/// total is exact, by largest remainder. The number of a layer is that of its first head.
struct table_power {
  label table{};  ///< the name of the table in specs
  double power = 1;
  double floor = 0;                ///< the part of its average that each layer is sure of
  by_lane<float const> numbers{};  ///< that table, in memory that the executor can read

  static constexpr auto name = "table_power";
  static constexpr auto fields() {
    return make_fields(field{"table", &table_power::table}, field{"power", &table_power::power},
                       field{"floor", &table_power::floor});
  }
  /// Takes the table that `table` names, when a spec is read.
  void use_table(by_lane<float const> const& named) { numbers = named; }
  void check(char const* call) const {
    expects(power - power == 0, call, "table_power.power", power, "numbers are raised to it");
    expects(floor >= 0 && floor <= 1, call, "table_power.floor", floor, "a part of the average, 0 to 1");
    expects(numbers.data != nullptr, call, "table_power.table", "null", "each layer has a number");
  }
  [[nodiscard]] static constexpr bool compares_layers() { return true; }
  [[nodiscard]] static constexpr budget_scope shared_by() { return budget_scope::layer; }
  [[nodiscard]] static constexpr int spare_rows(lanes const& batch) { return rows_of_scores(batch, batch.size()); }

  /// Writes the weight of the lane's layer.
  struct weigh {
    by_lane<float const> numbers;
    by_lane<float> to;
    double power;

    KVPOLICY_HD int operator()(lane_entries const& of) const {
      double const number = static_cast<double>(*numbers.row(lane{of.lane.sequence, of.lane.layer, 0}));
      to.row(of.lane)[0] = static_cast<float>(std::pow(number, power));
      return 0;
    }
  };
  /// - cost: O(layers^2 * heads) for each lane.
  template <class Executor>
  void allot(Executor& exec, allotting<Executor>& of, by_lane<int> const& shares) const {
    lanes const& batch = of.scores.lanes;
    by_lane<float> const weights = contiguous_scores(batch, granularity::lane, of.spare, 1).rows;
    ops::map_lanes(exec, batch, weigh{numbers, weights, power}, shares);
    constexpr double no_cap = 1e9;
    detail::allot_by_weight(exec, batch, detail::weight_in_rows{weights}, of.average, {0, 0, floor}, no_cap, shares,
                            detail::layer_share::of_all_lanes);
  }
  friend bool operator==(table_power const& a, table_power const& b) {
    return a.table == b.table && a.power == b.power && a.floor == b.floor && a.numbers.data == b.numbers.data;
  }
};

}  // namespace KVPOLICY_NAMESPACE
