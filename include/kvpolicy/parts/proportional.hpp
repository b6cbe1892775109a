// SPDX-License-Identifier: Apache-2.0
// Budgets of layers in proportion to a number of each layer.
#pragma once

#include <concepts>
#include <kvpolicy/ops/map_lanes.hpp>
#include <kvpolicy/parts/allot.hpp>
#include <kvpolicy/parts/largest_remainder.hpp>

namespace KVPOLICY_NAMESPACE {

/// What layers' shares of a budget are in proportion to: `weights(in)` returns a struct with a KVPOLICY_HD
/// `float operator()(lane) const`, where `in` are the signals of a decision. The weight of a layer is that of its first
/// lane. A weight that is negative, infinite or NaN counts as 0.
template <class S>
concept layer_statistic = std::regular<S>;

/// Weights that a table holds: profiled once for a model, such as the importance of each layer.
struct table_of_layers {
  by_lane<float const> weight{};

  template <class SignalSet>
  [[nodiscard]] constexpr table_of_layers weights(SignalSet const&) const {
    return *this;
  }
  [[nodiscard]] KVPOLICY_HD constexpr float operator()(lane of) const { return *weight.row(of); }
  friend bool operator==(table_of_layers const& a, table_of_layers const& b) { return a.weight.data == b.weight.data; }
};

namespace detail {

/// The least share of a layer: a number of entries, or above 0 a part of those that it has, or of its average.
struct least_share {
  int tokens = 0;
  double part = 0;
  double part_of_average = 0;
};

/// Whether each lane of a layer has the layer's share, or all lanes have it together.
enum class layer_share { of_each_lane, of_all_lanes };

/// The shares of the layers of one sequence, in proportion to weights between two limits. A layer's average is the
/// number of entries that it would have without weights, and `total` is the sum of the averages.
///
///     x_l = low_l + (total - sum of low) w_l / (sum of w)
///     high_l = min(entries_l, int(cap * average_l))
///     low_l  = min(least, average_l, high_l), or a part of entries_l or of average_l
///
/// If layers are still to come, what these have above their lowest share is shared out, too, and shares are rounded up:
/// no layer has fewer entries than it will have when all are there.
/// If all lanes of a layer have its share together, its entries and its average are those of all of them, and each has
/// an equal part: of what is left over the first lanes one each. While an x is above its high_l, it becomes high_l, and
/// what it had more goes to the others in proportion to their weights. The sum of the shares is `total` exactly, by
/// largest remainder; all shares are high_l if that is less, and low_l if that is more.
template <class Weights, class Average>
struct shares_by_weight {
  Weights weights;
  Average average;
  lanes batch;
  least_share least;
  double cap;
  layer_share shared = layer_share::of_each_lane;
  int to_come = 0;  ///< layers that are not there yet

  [[nodiscard]] KVPOLICY_HD constexpr int operator()(lane_entries const& of) const {
    int const share = of_layer(of);
    if (shared == layer_share::of_each_lane) return share;
    return share / batch.heads + (of.lane.head < share % batch.heads ? 1 : 0);
  }

 private:
  [[nodiscard]] KVPOLICY_HD constexpr int of_layer(lane_entries const& of) const {
    int const first = batch.layer_begin;
    int const layers = batch.layers();
    std::int64_t total = 0;
    std::int64_t most = 0;
    double fewest = 0;
    double sum = 0;
    for (int l = first; l < batch.layer_end; ++l) {
      total += average_of(of.lane.sequence, l);
      most += high(of.lane.sequence, l);
      fewest += low(of.lane.sequence, l);
      sum += weight(of.lane.sequence, l);
    }
    double all = static_cast<double>(total);
    if (to_come > 0) all += to_come * (average_of(of.lane.sequence, first) - low(of.lane.sequence, first));
    if (static_cast<double>(most) <= all) return high(of.lane.sequence, of.lane.layer);
    if (fewest >= all) return static_cast<int>(low(of.lane.sequence, of.lane.layer) + 1e-9);
    line const found = filled(of.lane.sequence, all - fewest, sum);
    auto const share = [&](int l) {
      double const x = at(found, of.lane.sequence, first + l);
      double const limit = high(of.lane.sequence, first + l);
      return x < limit ? x : limit;
    };
    if (to_come > 0) return rounded_up(share(of.lane.layer - first));
    return by_largest_remainder(of.lane.layer - first, layers, total, share);
  }

  /// The share of a layer before its limit: low + slope * weight + rise.
  struct line {
    double slope = 0;
    double rise = 0;
  };

  [[nodiscard]] KVPOLICY_HD constexpr double at(line const& of, int sequence, int layer) const {
    return low(sequence, layer) + of.slope * weight(sequence, layer) + of.rise;
  }
  [[nodiscard]] KVPOLICY_HD constexpr double weight(int sequence, int layer) const {
    constexpr float largest = 3.402823466e38f;
    float const found = weights(lane{sequence, layer, 0});
    return found > 0 && found <= largest ? found : 0;
  }
  /// The entries of the longest lane of a layer, or of all lanes.
  [[nodiscard]] KVPOLICY_HD constexpr int entries(int sequence, int layer) const {
    int most = 0, all = 0;
    for (int h = 0; h < batch.heads; ++h) {
      int const count = batch.committed({sequence, layer, h});
      most = count > most ? count : most;
      all += count;
    }
    return shared == layer_share::of_all_lanes ? all : most;
  }
  [[nodiscard]] KVPOLICY_HD constexpr int average_of(int sequence, int layer) const {
    if (shared == layer_share::of_each_lane) return average(lane{sequence, layer, 0}, entries(sequence, layer));
    int all = 0;
    for (int h = 0; h < batch.heads; ++h) {
      lane const one{sequence, layer, h};
      all += average(one, batch.committed(one));
    }
    return all;
  }
  [[nodiscard]] KVPOLICY_HD constexpr int high(int sequence, int layer) const {
    int const all = entries(sequence, layer);
    int const share = average_of(sequence, layer);
    return cap * share < all ? part_of(cap, share) : all;
  }
  [[nodiscard]] KVPOLICY_HD constexpr double low(int sequence, int layer) const {
    if (least.part > 0) return least.part * entries(sequence, layer);
    int const share = average_of(sequence, layer);
    if (least.part_of_average > 0) return least.part_of_average * share;
    int const all = least.tokens < share ? least.tokens : share;
    int const limit = high(sequence, layer);
    return all < limit ? all : limit;
  }

  /// The line at which the shares, each up to its limit, sum to what there is. `free` is what is left above the lowest
  /// shares.
  [[nodiscard]] KVPOLICY_HD constexpr line filled(int sequence, double free, double sum) const {
    line before{-1, -1};  // no share is above its limit
    line now = sum > 0 ? line{free / sum, 0} : line{0, free / batch.layers()};
    for (int round = 0; round < batch.layers(); ++round) {
      double excess = 0;
      double open_weight = 0;
      int open = 0;
      for (int l = batch.layer_begin; l < batch.layer_end; ++l) {
        double const limit = high(sequence, l);
        double const x = at(now, sequence, l);
        if (x <= limit) {
          open_weight += weight(sequence, l);
          ++open;
        } else if (before.slope < 0 || at(before, sequence, l) <= limit) {
          excess += x - limit;
        }
      }
      if (!(excess > 0) || open == 0) return now;
      before = now;
      if (open_weight > 0) {
        now.slope += excess / open_weight;
      } else {
        now.rise += excess / open;
      }
    }
    return now;
  }
};

/// Writes the shares of all lanes.
template <class Executor, class Weights, class Average>
void allot_by_weight(Executor& exec, lanes const& batch, Weights const& weights, Average const& average,
                     least_share least, double cap, by_lane<int> const& shares,
                     layer_share shared = layer_share::of_each_lane, int to_come = 0) {
  using by_weight = shares_by_weight<Weights, Average>;
  ops::map_lanes(exec, batch, by_weight{weights, average, batch, least, cap, shared, to_come}, shares);
}

inline void check_proportion(char const* call, int tokens, int least, double cap) {
  check_tokens(call, tokens);
  expects(least >= 0, call, "budget.least", least, "a count cannot be negative");
  expects(cap >= 1, call, "budget.cap", cap, "a layer may keep cap times the average, cap >= 1");
}

}  // namespace detail

/// `tokens` entries for each lane on average. The share of a layer is in proportion to its weight, at least `least` and
/// at most `cap` times the average; all lanes of a layer have the same. The total of the layers is exact.
///
///     kv::proportional<kv::table_of_layers>{.of = {importance}, .tokens = 512}
///
/// Shares in proportion to an importance that was profiled for each layer are CompressKV's (Lin et al. 2025,
/// arXiv:2508.02401).
template <layer_statistic Statistic>
struct proportional {
  Statistic of{};
  int tokens = 1024;
  int least = 32;
  double cap = 3;
  static constexpr auto name = "budget";
  static constexpr auto fields() {
    return make_fields(field{"", &proportional::tokens}, field{"least", &proportional::least},
                       field{"cap", &proportional::cap});
  }
  void check(char const* call) const { detail::check_proportion(call, tokens, least, cap); }

  /// The average.
  KVPOLICY_HD constexpr int operator()(lane, int) const { return tokens; }
  /// - cost: O(layers^2 * heads) a lane.
  template <class Executor, class SignalSet>
  void allot(Executor& exec, SignalSet const& in, score_view const&, by_lane<int> const& shares) const {
    detail::allot_by_weight(exec, in.lanes, of.weights(in), per_lane{tokens}, {least}, cap, shares);
  }
  [[nodiscard]] static constexpr bool compares_layers() { return true; }
  /// Layers that decide together would have several budgets.
  [[nodiscard]] static constexpr bool differs_by_layer() { return true; }
  friend bool operator==(proportional const&, proportional const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
