// SPDX-License-Identifier: Apache-2.0
// An allotter that goes by how attention of a layer is spread.
#pragma once

#include <array>
#include <cmath>
#include <kvpolicy/parts/proportional.hpp>
#include <kvpolicy/parts/shared_out.hpp>

namespace KVPOLICY_NAMESPACE {

/// How shares become whole entries.
///
/// - `largest`: by largest remainder, and the sum is exact.
/// - `release`: as the authors' code. Parts are cut off, what is above all entries of a lane goes to the other layers
/// in
///   equal parts, and what is missing then, too.
/// - `release_by_layer`: the same where layers come one by one: each has the least share that it had since it came.
enum class moment_rounding { largest, release, release_by_layer };

[[nodiscard]] constexpr std::array<char const*, 3> names(moment_rounding) {
  return {"largest", "release", "release_by_layer"};
}

namespace detail {

/// The preference of a layer.
struct layer_preference {
  by_lane<float> numbers;
  KVPOLICY_HD float operator()(lane of) const { return numbers.row(of)[2]; }
};
/// The average, or the window if that is more.
struct average_or_window {
  average_share average;
  int window;
  KVPOLICY_HD constexpr int operator()(lane one, int count) const {
    int const share = average(one, count);
    return share > window ? share : window;
  }
};

/// Shares of layers as CAKE's released code rounds them.
struct released_shares {
  layer_preference weights;
  average_or_window average;
  lanes batch;
  int window;
  bool by_layer;
  int of_model;  ///< layers that share what there is; some may be still to come

  [[nodiscard]] KVPOLICY_HD int operator()(lane_entries const& of) const {
    int const mine = of.lane.layer - batch.layer_begin;
    int const seen = window < of.count ? window : of.count;
    int share = share_of(of, mine, batch.layers());
    for (int layers = mine + 1; by_layer && layers < batch.layers(); ++layers) {
      int const before = share_of(of, mine, layers);
      share = before < share ? before : share;
    }
    return seen + share;
  }

 private:
  /// What is to be shared out, and the most that a layer may have.
  [[nodiscard]] KVPOLICY_HD std::int64_t total(lane_entries const& of) const {
    return std::int64_t{of_model} * (average(of.lane, of.count) - window);
  }
  /// Layers that were cut before have fewer entries than the longest one.
  [[nodiscard]] KVPOLICY_HD std::int64_t most(lane_entries const& of) const {
    int longest = 0;
    for (int l = batch.layer_begin; l < batch.layer_end; ++l) {
      int const count = batch.committed({of.lane.sequence, l, 0});
      longest = count > longest ? count : longest;
    }
    return longest > window ? longest - window : 0;
  }
  [[nodiscard]] KVPOLICY_HD double weight(lane_entries const& of, int l) const {
    return static_cast<double>(weights(lane{of.lane.sequence, batch.layer_begin + l, 0}));
  }
  /// Deals `rest` to the layers that are open, the first of which get what is left over.
  template <class Value, class Open>
  [[nodiscard]] KVPOLICY_HD static std::int64_t dealt(int l, int layers, std::int64_t rest, Value const& value,
                                                      Open const& open) {
    std::int64_t all = 0, before = 0;
    for (int i = 0; i < layers; ++i) {
      all += open(value(i)) ? 1 : 0;
      before += i < l && open(value(i)) ? 1 : 0;
    }
    return all == 0 || !open(value(l)) ? 0 : rest / all + (before < rest % all ? 1 : 0);
  }
  /// The share of a layer where so many layers are there.
  [[nodiscard]] KVPOLICY_HD int share_of(lane_entries const& of, int l, int layers) const {
    std::int64_t const limit = most(of);
    double sum = 0;
    for (int i = 0; i < layers; ++i) sum += weight(of, i);
    auto const wanted = [&](int i) {
      return sum > 0 ? static_cast<std::int64_t>(static_cast<double>(total(of)) * (weight(of, i) / sum)) : 0;
    };
    auto const cut = [&](int i) { return wanted(i) < limit ? wanted(i) : limit; };
    std::int64_t excess = 0;
    for (int i = 0; i < layers; ++i) excess += wanted(i) - cut(i);
    auto const below = [&](std::int64_t share) { return share < limit; };
    auto const filled = [&](int i) { return cut(i) + dealt(i, layers, excess, cut, below); };
    std::int64_t missing = total(of);
    for (int i = 0; i < layers; ++i) missing -= filled(i);
    auto const above = [](std::int64_t share) { return share > 1; };
    std::int64_t const share = missing >= 0 ? filled(l) + dealt(l, layers, missing, filled, below)
                                            : filled(l) - dealt(l, layers, -missing, filled, above);
    return static_cast<int>(share);
  }
};

}  // namespace detail

/// Shares of layers in proportion to how widely their attention is spread over entries and how much it changes from row
/// to row (CAKE, Qin et al. 2025, arXiv:2503.12491, equation 5).
///
///     preference of a layer = H^(1 / tau1) V^(1 / tau2)          H: entropy, V: variance, both summed over its heads
///     share                 = w + the layer's part of L (B - w)  w: the window, B: the average, L: layers
///
/// The scorer computes H and V (`cake`). All lanes of a layer have the same share, at most all of their entries, and
/// the total of the layers is exact, by largest remainder.
///
/// `one_by_one(L)` is for a prompt whose layers come one by one, with `frozen<cake>`: a decision is about the first m
/// of L layers, whose shares are those of what L layers have, rounded up. The decision about all L layers then keeps
/// what one decision about all of them would have kept.
/// Such a value is made of one that was read: `layers` has no name in specs.
struct moments {
  double tau1 = 1;
  double tau2 = 1;
  moment_rounding rounding = moment_rounding::largest;
  int window = 0;  ///< w; a policy by name has that of its scorer
  int layers = 0;  ///< of the model, where decisions are about the first ones; 0: they are about all

  static constexpr auto name = "moments";
  static constexpr auto fields() {
    return make_fields(field{"tau1", &moments::tau1}, field{"tau2", &moments::tau2},
                       field{"rounding", &moments::rounding});
  }
  static constexpr int lane_numbers = 3;  ///< entropy, variance, and room for the preference of the lane's layer
  void check(char const* call) const {
    expects(tau1 > 0, call, "moments.tau1", tau1, "entropies are raised to 1 / tau1, tau1 > 0");
    expects(tau2 > 0, call, "moments.tau2", tau2, "variances are raised to 1 / tau2, tau2 > 0");
    expects(window >= 0, call, "moments.window", window, "a count cannot be negative");
  }
  [[nodiscard]] constexpr bool compares_layers() const { return layers == 0; }
  [[nodiscard]] constexpr moments with_window(int w) const { return {tau1, tau2, rounding, w, layers}; }
  [[nodiscard]] constexpr moments one_by_one(int of_model) const { return {tau1, tau2, rounding, window, of_model}; }

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
  /// - cost: O(layers^2 + layers * heads) for each lane; with the rounding of the release O(layers^2) for
  ///   each lane, and O(layers^3) where layers come one by one.
  template <class Executor>
  void allot(Executor& exec, allotting<Executor>& of, by_lane<int> const& shares) const {
    lanes const& batch = of.scores.lanes;
    by_lane<float> const numbers = numbers_of_lanes(of.scores, lane_numbers);
    ops::map_lanes(exec, batch, prefer{numbers, batch.heads, tau1, tau2}, shares);
    int const all = layers > batch.layers() ? layers : batch.layers();
    if (rounding != moment_rounding::largest) {
      bool const by_layer = rounding == moment_rounding::release_by_layer;
      detail::released_shares const by{{numbers}, {of.average, window}, batch, window, by_layer, all};
      return ops::map_lanes(exec, batch, by, shares);
    }
    constexpr double no_cap = 1e9;
    detail::allot_by_weight(exec, batch, detail::layer_preference{numbers},
                            detail::average_or_window{of.average, window}, {window}, no_cap, shares,
                            detail::layer_share::of_each_lane, all - batch.layers());
  }
  friend bool operator==(moments const&, moments const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
