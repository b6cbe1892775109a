// SPDX-License-Identifier: Apache-2.0
// Q-Filters: minus the product of a key and the direction of its head.
#pragma once

#include "reference/methods.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct q_filters {
  using scorer = kv::q_filters;
  static constexpr auto header = "q_filters.hpp";
  static constexpr refusal refusals[] = {
      {"q_filters",
       "parse: column 1 = q_filters, but its table is q_filters, and a table is given to the registry by its "
       "name"},
      {"q_filters(table=of_mine)", "parse: column 17 = of_mine, but a table is given to the registry by its name"}};

  static inline float const rows[told_lanes::lanes][told_lanes::dims] = {
      {1, 0, -2, 0.5f}, {0, 0, 0, 0}, {-1, 3, 0.25f, 0}, {2, 2, -2, 2}};
  static kv::rows_of_heads directions() {
    return {{rows[0], 0, std::int64_t{2} * told_lanes::dims, told_lanes::dims}, told_lanes::dims};
  }
  static kv::registry known() { return kv::shipped().table("q_filters", directions()); }

  static scorer any() { return {directions()}; }
  static int last(scorer const&) { return 0; }
  static reference::row scores(scorer const&, told_of_lane const& lane) {
    reference::row const direction(rows[lane.number], rows[lane.number] + told_lanes::dims);
    reference::row made;
    for (reference::row const& key : lane.keys) made.push_back(-reference::dot(direction, key));
    return made;
  }

  static void worked() {
    kv::shape const model{2, 2, 2, 8};
    CHECK(error_of([&] { any().check("decide", model); }) ==
          "decide: q_filters.directions.dims = 4, but the model's keys have 8 channels");
    CHECK(error_of([&] { scorer{}.check("decide", model); }) ==
          "decide: q_filters.directions = null, but each KV head has a direction");
  }
};

}  // namespace kvpolicy_test::methods
