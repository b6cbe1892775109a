// SPDX-License-Identifier: Apache-2.0
// An allotter that goes by how much the scores of a layer vary from entry to entry.
#pragma once

#include <cmath>
#include <kvpolicy/ops/row_stats.hpp>
#include <kvpolicy/parts/proportional.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/parts/shared_out.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {
/// The weight of a layer, beside the variance of its lane.
struct weight_by_variance {
  by_lane<float> numbers;
  KVPOLICY_HD float operator()(lane of) const { return numbers.row(of)[1]; }
};
}  // namespace detail

/// Shares of layers by D2O's rule (Wan et al. 2024, arXiv:2406.13035, section 3.2): the more the scores of a layer vary
/// from entry to entry, the fewer entries it needs.
///
///     F_l   = variance of the layer's scores, over the sum of all layers' variances
///     share = the layer's part of L B in proportion to e^(-F_l), at least `least` of its entries       B: the average
///
/// The paper's scores are the attention of all rows, of all heads on average: `h2o(group=mean)` with
/// `reduce_lanes(layer, mean)`. Where lanes score alone, the variance of a layer is the mean of theirs. All lanes of a
/// layer have the same share, and the total is exact, by largest remainder.
struct variance {
  double least = 0.01;  ///< the part of its entries that a layer is sure of

  static constexpr auto name = "variance";
  static constexpr auto fields() { return make_fields(field{"least_part", &variance::least}); }
  void check(char const* call) const {
    expects(least >= 0 && least <= 1, call, "variance.least_part", least, "a part of a layer's entries, 0 to 1");
  }
  [[nodiscard]] static constexpr bool compares_layers() { return true; }
  [[nodiscard]] static constexpr int spare_rows(lanes const& batch) {
    return rows_of_scores(batch, std::int64_t{2} * batch.size());
  }

  /// Writes the weight of the lane's layer beside the lane's variance.
  struct weigh {
    by_lane<float> numbers;
    lanes batch;
    int rows;  ///< rows of scores of a layer

    KVPOLICY_HD double of_layer(int sequence, int layer) const {
      double sum = 0;
      for (int h = 0; h < rows; ++h) sum += static_cast<double>(numbers.row(lane{sequence, layer, h})[0]);
      return sum / rows;
    }
    KVPOLICY_HD int operator()(lane_entries const& of) const {
      double all = 0;
      for (int l = batch.layer_begin; l < batch.layer_end; ++l) all += of_layer(of.lane.sequence, l);
      double const mine = of_layer(of.lane.sequence, of.lane.layer);
      numbers.row(of.lane)[1] = static_cast<float>(std::exp(all > 0 ? -mine / all : 0));
      return 0;
    }
  };
  /// - cost: one pass over the scores, and O(layers^2 + layers * heads) for each lane.
  template <class Executor>
  void allot(Executor& exec, allotting<Executor>& of, by_lane<int> const& shares) const {
    lanes const& batch = of.scores.lanes;
    by_lane<float> const numbers = contiguous_scores(batch, granularity::lane, of.spare, 2).rows;
    ops::row_stats(exec, of.scores, everything{}, statistic::variance, numbers);
    int const rows = of.scores.decides == granularity::lane ? batch.heads : 1;
    ops::map_lanes(exec, batch, weigh{numbers, batch, rows}, shares);
    constexpr double no_cap = 1e9;
    detail::allot_by_weight(exec, batch, detail::weight_by_variance{numbers}, of.average, {0, least}, no_cap, shares);
  }
  friend bool operator==(variance const&, variance const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
