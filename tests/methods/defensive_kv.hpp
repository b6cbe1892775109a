// SPDX-License-Identifier: Apache-2.0
// DefensiveKV: the most attention of any pooled row, floored by its mean, times norms; entries of most attention first.
#pragma once

#include "reference/methods.hpp"
#include "reference/pooled_attention.hpp"
#include "support/masses.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct defensive_kv {
  using scorer = kv::defensive_kv;
  static constexpr auto header = "defensive_kv.hpp";
  static constexpr refusal refusals[] = {
      {"defensive_kv(window=0)", "parse: column 1: defensive_kv.window = 0, but at least one row observes"},
      {"defensive_kv(pool=max:2)", "parse: column 1: defensive_kv.pool = 2, but a pool has an odd width"},
      {"defensive_kv(cover=1.5)", "parse: column 1: defensive_kv.cover = 1.5, but a part of the attention, 0 to 1"},
      {"layer_defensive_kv(cover=-0.1)",
       "parse: column 1: layer_defensive_kv.cover = -0.1, but a part of the attention, 0 to 1"}};

  static scorer any() {
    return {.window = *rc::gen::element(1, 2, 5, 8, 100),
            .pool = *rc::gen::element<kv::pooling>(kv::no_pool{}, kv::max_pool{3}, kv::avg_pool{5}),
            .cover = *rc::gen::element(0.0, 0.3, 0.9, 1.0),
            .bias = *rc::gen::element(kv::cover_bias::window, kv::cover_bias::release),
            .axis = *rc::gen::element(kv::norm_axis::heads, kv::norm_axis::tokens, kv::norm_axis::none)};
  }
  static int last(scorer const& with) { return with.window; }
  static reference::row scores(scorer const& with, std::vector<told_of_lane> const& lanes, std::size_t which,
                               reference::flags const& forced, int budget) {
    std::size_t const count = lanes[which].keys.size(), tail = std::min(as_size(with.window), count);
    reference::row made(count, std::nan(""));
    if (count == tail) return made;
    reference::pooled_attention of = attention(with, lanes[which]);
    of.most.resize(count - tail);
    double const floor = sum(of.most) / static_cast<double>(count - tail);
    reference::flags first_ones;
    if (!find_first(of.mean, covered_mass(with, lanes, which), count - tail, forced, budget, first_ones)) return {};
    for (std::size_t j = 0; j < count - tail; ++j) {
      if (forced[j]) continue;
      double norms = with.axis == kv::norm_axis::none ? 1 : 0;
      for (std::size_t h = 0; h < 2 && with.axis == kv::norm_axis::heads; ++h) {
        norms += static_cast<double>(told_lanes::value_norm(lanes[which / 2 * 2 + h], j));
      }
      for (std::size_t e = 0; e < count - tail && with.axis == kv::norm_axis::tokens; ++e) {
        norms += static_cast<double>(told_lanes::value_norm(lanes[which], e));
      }
      double const own = static_cast<double>(told_lanes::value_norm(lanes[which], j));
      made[j] = std::max(of.most[j], floor) * (own == 0 && norms == 0 ? 0 : own / norms);
      if (first_ones[j]) made[j] = reference::infinity;
    }
    return made;
  }

  /// Two query heads of two rows and five entries before the window.
  static void worked() {
    std::vector<reference::matrix> const heads = {{{.50, .10, .05, .05, .10}, {.20, .30, .10, .05, .05}},
                                                  {{.05, .05, .40, .10, .20}, {.10, .10, .10, .30, .20}}};
    reference::row const pooled = reference::pooled_with_mass(heads[0][0], {reference::pool_kind::average, 3}, 0);
    check_digits(pooled, {0.266667, 0.288889, 0.088889, 0.088889, 0.066667}, 6);
    auto const of = reference::pooled_attention_of(heads, 5, {reference::pool_kind::average, 3}, 0);
    check_digits(of.most, {0.266667, 0.288889, 0.204651, 0.260465, 0.190476}, 6);
    check_digits(of.mean, {0.2125, 0.1375, 0.1625, 0.125, 0.1375}, 6);
    double margin = 1;
    CHECK(reference::covered(of.mean, 0.9 * 0.775, margin) == 4);  // and the fifth crosses
  }

 private:
  static double sum(reference::row const& of) { return std::accumulate(of.begin(), of.end(), 0.0); }
  static reference::pooled_attention attention(scorer const& with, told_of_lane const& lane) {
    return reference::pooled_attention_of(reference::attention_of_last_rows(lane.attention(), with.window),
                                          lane.keys.size(), in_double(with.pool), with.window);
  }
  /// What those who are put first stay below, in sum.
  static double covered_mass(scorer const& with, std::vector<told_of_lane> const& lanes, std::size_t which) {
    bool const release = with.bias == kv::cover_bias::release;
    std::size_t const count = lanes[which].keys.size(), before = count - as_size(with.window);
    std::size_t const begin = release ? before - std::min(before, as_size(with.window)) : before;
    double bias = 0;
    for (std::size_t h = which / 2 * 2; h < which / 2 * 2 + 2; ++h) {
      reference::row const mean = attention(with, lanes[h]).mean;
      for (std::size_t j = begin; j < (release ? before : count); ++j) bias += mean[j] / 2;
    }
    reference::row mean = attention(with, lanes[which]).mean;
    mean.resize(before);
    return (with.cover - bias) * sum(mean);
  }
  /// Finds the entries that are put first, of those before the window; false if rounding decides which they are.
  static bool find_first(reference::row mean, double limit, std::size_t before, reference::flags const& forced,
                         int budget, reference::flags& found) {
    found.assign(mean.size(), false);
    mean.resize(before);
    double margin = 1;
    auto const held = static_cast<int>(std::count(forced.begin(), forced.end(), true));
    int const places = std::min(reference::covered(mean, limit, margin), budget - held);
    if (margin < 1e-5 && budget > held) return false;
    if (places <= 0) return true;
    mean.resize(forced.size(), 0.0);
    double least = 1, next = 0;
    for (int const e : reference::select(mean, forced, held + places).kept) found[as_size(e)] = true;
    for (std::size_t e = 0; e < before; ++e) {
      if (forced[e]) continue;
      if (found[e]) least = std::min(least, mean[e]);
      if (!found[e]) next = std::max(next, mean[e]);
    }
    return least - next > 1e-6;
  }
};

}  // namespace kvpolicy_test::methods
