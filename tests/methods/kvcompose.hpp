// SPDX-License-Identifier: Apache-2.0
// KVCompose: the attention of given rows, and the mean of it over a layer's lanes.
#pragma once

#include "reference/methods.hpp"
#include "support/masses.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct kvcompose {
  using scorer = kv::kvcompose;
  static constexpr auto header = "kvcompose.hpp";
  static constexpr double size = 20;
  static constexpr refusal refusals[] = {
      {"kvcompose(group=last)", "parse: column 1: kvcompose: kvcompose.group = last, but query heads have no order"},
      {"kvcompose(first_layer=false) | budget(9, by=hits)",
       "parse: column 32 = budget, but kvcompose says how shares differ, or the budget does"}};

  static scorer any() {
    return {.rows = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max),
            .group = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max),
            .add_mean = any_bool(),
            .values = any_bool()};
  }
  static int last(scorer const&) { return 0; }
  static reference::row scores(scorer const& with, std::vector<told_of_lane> const& lanes, std::size_t which) {
    reference::row made = own(with, lanes[which]);
    if (!with.add_mean) return made;
    std::size_t const heads = 2, first = which / heads * heads;
    reference::row mean(made.size(), 0.0);
    for (std::size_t h = first; h < first + heads; ++h) {
      reference::row const other = own(with, lanes[h]);
      for (std::size_t j = 0; j < mean.size(); ++j) mean[j] += other[j] / static_cast<double>(heads);
    }
    for (std::size_t j = 0; j < made.size(); ++j) made[j] += mean[j];
    return made;
  }
  /// The attention of a lane's own rows, each of which sees all entries.
  static reference::row own(scorer const& with, told_of_lane const& lane) {
    reference::lane_attention all = lane.attention();
    if (all.keys.empty()) return {};
    for (int& each : all.query_positions) each = 1 << 20;
    reference::row made = reference::attention_mass(all, {.rows = static_cast<reference::reduction>(with.rows),
                                                          .group = static_cast<reference::reduction>(with.group)});
    if (!with.values) return made;
    reference::row const norms = reference::row_norms(lane.values);
    for (std::size_t j = 0; j < made.size(); ++j) made[j] *= norms[j];
    return made;
  }

  /// Composites of three layers of two lanes. The best three are two of the first layer and one of the second, and the
  /// third layer has one nevertheless.
  static void worked() {
    std::vector<float> scores{0.9f, 0.3f, 0.1f, 0.2f, 0.8f, 0.5f, 0.7f,  0.2f,  0.3f,
                              0.3f, 0.6f, 0.2f, 0.1f, 0.1f, 0.1f, 0.05f, 0.05f, 0.05f};
    mock_cache cache({.model = {.layers = 3, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .bound = 3});
    for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), up_to(3));
    for (bool const first_layer : {false, true}) {
      std::vector<float> memory(18);
      kv::host_executor exec;
      shown of(cache.lanes(), scores.data(), memory.data());
      int shares[6];
      kv::ranks{.first_layer = first_layer}.allot(exec, of, kv::by_lane<int>{shares, 0, 2, 1});
      double const composites[3][3] = {{0.85, 0.4, first_layer ? 0.2 : 0.15}, {0.65, 0.3, 0.2}, {0.075, 0.075, 0.075}};
      for (std::size_t l = 0; l < 3; ++l) {
        for (std::size_t r = 0; r < 3; ++r) {
          CHECK(static_cast<double>(memory[6 * l + r]) == doctest::Approx(composites[l][r]));
        }
        CHECK(shares[2 * l] == (l == 0 ? 2 : 1));
        CHECK(shares[2 * l + 1] == shares[2 * l]);
      }
    }
  }

 private:
  /// What a decision shows: scores, and one entry on average.
  struct shown final : kv::allotting<kv::host_executor> {
    shown(kv::lanes const& batch, float* given, float* memory) {
      scores = kv::contiguous_scores(batch, kv::granularity::lane, given, 3);
      spare = memory;
      average.tokens = 1;
    }
    [[nodiscard]] kv::kept_of_lanes kept(kv::budget_scope, kv::sure_part, kv::forced_by) override { return {}; }
  };
};

}  // namespace kvpolicy_test::methods
