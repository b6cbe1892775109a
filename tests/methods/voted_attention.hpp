// SPDX-License-Identifier: Apache-2.0
// CompressKV: the attention of the last rows, where each query head has a weight.
#pragma once

#include "reference/methods.hpp"
#include "support/masses.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct voted_attention {
  using scorer = kv::voted_attention;
  static constexpr auto header = "voted_attention.hpp";
  static constexpr refusal refusals[] = {
      {"voted_attention(voters=of_mine)",
       "parse: column 24 = of_mine, but a table is given to the registry by its name"}};

  /// Of the two query heads of each lane.
  static inline float const rows[told_lanes::lanes][told_lanes::group] = {{1, 0}, {0.5f, 2}, {0, 0}, {0, 3}};
  static kv::rows_of_heads weights() {
    return {{rows[0], 0, std::int64_t{2} * told_lanes::group, told_lanes::group}, told_lanes::group};
  }
  static kv::registry known() { return kv::shipped().table("voters", weights()); }

  static scorer any() {
    return {.window = *rc::gen::element(1, 2, 7, 100),
            .pool = *rc::gen::element<kv::pooling>(kv::no_pool{}, kv::max_pool{3}, kv::avg_pool{5}),
            .weights = weights()};
  }
  static int last(scorer const& with) { return with.window; }
  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    reference::lane_attention const some = lane.attention();
    std::size_t const entries = some.keys.size();
    std::size_t const used = std::min(entries, as_size(with.window));
    double all = 0;
    for (int of = lane.number / 2 * 2; of < lane.number / 2 * 2 + 2; ++of) {
      for (float const each : rows[of]) all += static_cast<double>(each);
    }
    reference::row made(entries, 0.0);
    for (std::size_t h = 0; h < some.queries.size(); ++h) {
      reference::matrix head = reference::attention_weights(some, {})[h];
      head.erase(head.begin(), head.end() - static_cast<std::ptrdiff_t>(used));
      reference::row const sum = reference::pooled(reference::reduced(head, reference::reduction::sum, entries),
                                                   in_double(with.pool), static_cast<int>(used));
      for (std::size_t j = 0; j < entries; ++j) made[j] += static_cast<double>(rows[lane.number][h]) * sum[j] / all;
    }
    return made;
  }

  /// Heads 0 and 3 of four vote.
  static void worked() {
    double const p[4][2] = {{0.6, 0.4}, {0.1, 0.9}, {0.1, 0.9}, {0.2, 0.8}};
    CHECK((p[0][0] + p[3][0]) / 2 == doctest::Approx(0.4));
    CHECK((p[0][1] + p[3][1]) / 2 == doctest::Approx(0.6));
    kv::shape const model{2, 2, 2, 8};
    CHECK(error_of([&] { scorer{.weights = weights()}.check("decide", model); }) ==
          "decide: voted_attention.voters.dims = 2, but a KV head of the model has 1 query heads");
    CHECK(error_of([&] { scorer{}.check("decide", model); }) ==
          "decide: voted_attention.voters = null, but each query head has a weight");
  }
};

}  // namespace kvpolicy_test::methods
