// SPDX-License-Identifier: Apache-2.0
// An allotter that goes by where a layer stands in the model.
#pragma once

#include <array>
#include <cmath>
#include <kvpolicy/parts/shared_out.hpp>

namespace KVPOLICY_NAMESPACE {

/// How the part of a layer falls from the first layer to the last: in a line, or as half a period of a cosine.
enum class depth_curve { cosine, linear };

[[nodiscard]] constexpr std::array<char const*, 2> names(depth_curve) { return {"cosine", "linear"}; }

/// Shares of layers that fall from the first layer to the last (PyramidInfer, Yang et al. 2024, arXiv:2405.12532). Each
/// is a part of the budget, and the total follows from the parts.
///
///     part of layer l = first + (last - first) x,   x = l / (L - 1), or (1 - cos(pi l / (L - 1))) / 2
///     share           = max(least, floor(part B)), at most the lane's entries       B: the budget, L: layers
///
/// With the budget `ratio=0`, which drops nothing, B is the number of entries of the lane. A single layer has the part
/// `first`.
struct depth {
  double first = 0.9;
  double last = 0.3;
  depth_curve curve = depth_curve::cosine;
  int least = 64;  ///< entries

  static constexpr auto name = "depth";
  static constexpr auto fields() {
    return make_fields(field{"first", &depth::first}, field{"last", &depth::last}, field{"curve", &depth::curve},
                       field{"least", &depth::least});
  }
  void check(char const* call) const {
    expects(first >= 0 && first <= 1, call, "depth.first", first, "a part of the budget, 0 to 1");
    expects(last >= 0 && last <= 1, call, "depth.last", last, "a part of the budget, 0 to 1");
    expects(least >= 0, call, "depth.least", least, "a count cannot be negative");
  }
  [[nodiscard]] static constexpr bool compares_layers() { return true; }

  /// The share of a lane.
  struct of_layer {
    double first, last;
    bool cosine;
    int least;
    average_share average;
    lanes batch;

    KVPOLICY_HD int operator()(lane_entries const& of) const {
      int const layers = batch.layers();
      double x = layers > 1 ? static_cast<double>(of.lane.layer - batch.layer_begin) / (layers - 1) : 0;
      constexpr double pi = 3.14159265358979323846;
      if (cosine) x = (1 - std::cos(pi * x)) / 2;
      int const part = detail::floor_of_part(first + (last - first) * x, average(of.lane, of.count));
      int const share = part > least ? part : least;
      return share < of.count ? share : of.count;
    }
  };
  /// - cost: O(1) for each lane.
  template <class Executor>
  void allot(Executor& exec, allotting<Executor>& of, by_lane<int> const& shares) const {
    ops::map_lanes(exec, of.scores.lanes,
                   of_layer{first, last, curve == depth_curve::cosine, least, of.average, of.scores.lanes}, shares);
  }
  friend bool operator==(depth const&, depth const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
