// SPDX-License-Identifier: Apache-2.0
// Budgets that fall from the first layer to the last.
#pragma once

#include <array>
#include <cstdint>
#include <kvpolicy/parts/budget.hpp>
#include <kvpolicy/parts/largest_remainder.hpp>

namespace KVPOLICY_NAMESPACE {

/// How the shares of the layers are rounded to whole entries.
///
/// - `exact`: by largest remainder. The shares of all layers sum to `tokens` times the number of layers.
/// - `kvpress`: each share to the nearest integer, and every layer `tokens` if the ramp leaves its limits, as kvpress
///   0.5.5 does. There the window is a part of the ramp.
/// - `factory`: with integer divisions only, as in KVCache-Factory.
enum class ramp_rule { exact, kvpress, factory };

[[nodiscard]] constexpr std::array<char const*, 3> names(ramp_rule) { return {"exact", "kvpress", "factory"}; }

/// The shares of layers by PyramidKV (Cai et al. 2024, arXiv:2406.02069, section 3.2): they fall linearly, and the
/// smallest one is that of the last layer.
///
///     C     = tokens - w                                   w: the window, whose entries every layer keeps
///     low   = C / beta, high = 2 C - low                   if high > count - w: high = count - w, low = 2 C - high
///     share = w + high - layer (high - low) / (layers - 1)
struct layer_ramp {
  double beta = 20;
  ramp_rule rule = ramp_rule::exact;
  int window = 0;  ///< w
  int layers = 0;  ///< of the model; 0 or 1: every lane has the average

  void check(char const* call) const {
    expects(beta >= 1, call, "budget.beta", beta, "the last layer's share is 1 / beta of the average, beta >= 1");
    expects(window >= 0, call, "budget.window", window, "a count cannot be negative");
  }

  /// The share of a layer whose lanes have `count` entries, where `tokens` is the average over the layers.
  [[nodiscard]] KVPOLICY_HD constexpr int operator()(int layer, int tokens, int count) const {
    return (*this)(layer, tokens, count, tokens);
  }
  /// The same where a ratio makes the average, which `kvpress` does not round before the shares.
  [[nodiscard]] KVPOLICY_HD constexpr int operator()(int layer, int tokens, int count, double average) const {
    if (tokens >= count) return tokens;  // nothing has to be dropped
    int const seen = window < count ? window : count;
    if (rule == ramp_rule::factory) return by_factory(layer, tokens - seen > 0 ? tokens - seen : 0, count, seen);
    if (rule == ramp_rule::kvpress) return by_kvpress(layer, average, count, seen);
    if (layers <= 1) return tokens > seen ? tokens : seen;
    line const ramp(static_cast<double>(tokens - seen > 0 ? tokens - seen : 0), beta, count - seen);
    auto const share = [&](int of) { return tokens < seen ? seen : seen + ramp.at(of, layers); };
    return detail::by_largest_remainder(layer, layers, std::int64_t{layers} * tokens, share);
  }

  friend bool operator==(layer_ramp const&, layer_ramp const&) = default;

 private:
  /// A line from `high` at the first layer to `low` at the last one.
  struct line {
    double low;
    double high;
    KVPOLICY_HD constexpr line(double average, double beta, int most) : low(average / beta), high(2 * average - low) {
      if (high > most) {
        high = most;
        low = 2 * average - high;
      }
    }
    [[nodiscard]] KVPOLICY_HD constexpr double at(int layer, int of) const {
      return of > 1 ? high - layer * (high - low) / (of - 1) : high;
    }
  };

  /// Rounds halves to even numbers, as Python does.
  KVPOLICY_HD static constexpr int nearest(double share) {
    auto const below = static_cast<int>(share);
    double const part = share - below;
    return part > 0.5 || (part == 0.5 && below % 2 != 0) ? below + 1 : below;
  }

  [[nodiscard]] KVPOLICY_HD constexpr int by_kvpress(int layer, double average, int count, int seen) const {
    line const ramp(average, beta, count - seen);
    bool const fits = count >= ramp.high && ramp.high >= ramp.low && ramp.low >= seen;
    if (!fits) return nearest(average) > 1 ? nearest(average) : 1;
    return nearest(ramp.at(layer, layers));
  }

  [[nodiscard]] KVPOLICY_HD constexpr int by_factory(int layer, int average, int count, int seen) const {
    int low = static_cast<int>(average / beta);
    int high = 2 * average - low;
    if (high > count - seen) {
      high = count - seen;
      low = 2 * average - high;
    }
    if (layers <= 1) return seen + average;
    return seen + high - layer * ((high - low) / (layers - 1));
  }
};

/// `tokens` entries for each lane on average over the layers; the layers' shares are those of a `layer_ramp`, whose
/// `layers` a decision sets.
struct ramp {
  int tokens = 1024;
  layer_ramp shares{};
  static constexpr auto name = "budget";
  void check(char const* call) const {
    detail::check_tokens(call, tokens);
    shares.check(call);
  }
  KVPOLICY_HD constexpr int operator()(lane this_lane, int count) const {
    return shares(this_lane.layer, tokens, count);
  }
  /// Layers that decide together would have several budgets.
  [[nodiscard]] static constexpr bool differs_by_layer() { return true; }
  [[nodiscard]] constexpr ramp in_entries(shape const& model, std::int64_t) const {
    ramp made = *this;
    made.shares.layers = model.layers;
    return made;
  }
  friend bool operator==(ramp const&, ramp const&) = default;
};

namespace detail {
inline std::string print_ramp(layer_ramp const& of) {
  return ", by=ramp, beta=" + to_string(of.beta) +
         (of.rule == ramp_rule::exact ? "" : ", rule=" + std::string(to_string(of.rule)));
}
}  // namespace detail

[[nodiscard]] inline std::string print(ramp const& limit) {
  return "budget(" + to_string(limit.tokens) + detail::print_ramp(limit.shares) + ")";
}

}  // namespace KVPOLICY_NAMESPACE
