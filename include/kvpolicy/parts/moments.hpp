// SPDX-License-Identifier: Apache-2.0
// An allotter that goes by how attention of a layer is spread.
#pragma once

#include <cmath>
#include <kvpolicy/parts/proportional.hpp>
#include <kvpolicy/parts/shared_out.hpp>

namespace KVPOLICY_NAMESPACE {

/// Shares of layers in proportion to how widely their attention is spread over entries and how much it changes from row
/// to row (CAKE, Qin et al. 2025, arXiv:2503.12491, equation 5).
///
///     preference of a layer = H^(1 / tau1) V^(1 / tau2)          H: entropy, V: variance, both summed over its heads
///     share                 = w + the layer's part of L (B - w)  w: the window, B: the average, L: layers
///
/// The scorer computes H and V (`cake`). All lanes of a layer have the same share, at most all of their entries, and
/// the total of the layers is exact, by largest remainder.
struct moments {
  double tau1 = 1;
  double tau2 = 1;
  int window = 0;  ///< w; a policy by name has that of its scorer

  static constexpr auto name = "moments";
  static constexpr auto fields() { return make_fields(field{"tau1", &moments::tau1}, field{"tau2", &moments::tau2}); }
  static constexpr int lane_numbers = 3;  ///< entropy, variance, and room for the preference of the lane's layer
  void check(char const* call) const {
    expects(tau1 > 0, call, "moments.tau1", tau1, "entropies are raised to 1 / tau1, tau1 > 0");
    expects(tau2 > 0, call, "moments.tau2", tau2, "variances are raised to 1 / tau2, tau2 > 0");
    expects(window >= 0, call, "moments.window", window, "a count cannot be negative");
  }
  [[nodiscard]] static constexpr bool compares_layers() { return true; }
  [[nodiscard]] constexpr moments with_window(int w) const { return {tau1, tau2, w}; }

  /// Writes the preference of the lane's layer beside the lane's numbers.
  struct prefer {
    by_lane<float> numbers;
    int heads;
    double tau1;
    double tau2;
    KVPOLICY_HD int operator()(lane_entries const& of) const {
      double entropy = 0, variance = 0;
      for (int h = 0; h < heads; ++h) {
        float const* const one = numbers.row(lane{of.lane.sequence, of.lane.layer, h});
        entropy += static_cast<double>(one[0]);
        variance += static_cast<double>(one[1]);
      }
      numbers.row(of.lane)[2] = static_cast<float>(std::pow(entropy, 1 / tau1) * std::pow(variance, 1 / tau2));
      return 0;
    }
  };
  /// The preference of a layer.
  struct preference {
    by_lane<float> numbers;
    [[nodiscard]] constexpr preference weights(auto const&) const { return *this; }
    KVPOLICY_HD float operator()(lane of) const { return numbers.row(of)[2]; }
  };
  /// The average, or the window if that is more.
  struct at_least_window {
    average_share average;
    int window;
    KVPOLICY_HD constexpr int operator()(lane one, int count) const {
      int const share = average(one, count);
      return share > window ? share : window;
    }
  };
  /// The lanes that shares are of.
  struct these {
    kvpolicy::lanes lanes;
  };

  /// - cost: O(layers^2 + layers * heads) for each lane.
  template <class Executor>
  void allot(Executor& exec, allotting<Executor>& of, by_lane<int> const& shares) const {
    lanes const& batch = of.scores.lanes;
    by_lane<float> const numbers = numbers_of_lanes(of.scores, lane_numbers);
    ops::map_lanes(exec, batch, prefer{numbers, batch.heads, tau1, tau2}, shares);
    constexpr double no_cap = 1e9;
    detail::allot_by_weight(exec, these{batch}, preference{numbers}, at_least_window{of.average, window}, window,
                            no_cap, shares);
  }
  friend bool operator==(moments const&, moments const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
