// SPDX-License-Identifier: Apache-2.0
// KVzip: the most attention that an entry gets from the rows that repeat its chunk.
#pragma once

#include "reference/spans.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct kvzip {
  using scorer = kv::kvzip;
  static constexpr auto header = "kvzip.hpp";
  static constexpr refusal refusals[] = {
      {"kvzip(sinks=-1)", "parse: column 1: kvzip.sinks = -1, but a count cannot be negative"},
      {"kvzip_plus(sinks=-1)", "parse: column 1: kvzip_plus.sinks = -1, but a count cannot be negative"}};

  static scorer any() { return {.sinks = *rc::gen::element(0, 1, 4, 30)}; }
  static int last(scorer const&) { return 0; }
  static int sinks(scorer const& with) { return with.sinks; }
  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    auto const count = static_cast<int>(lane.keys.size());
    int const chunk = told_lanes::chunk;
    std::vector<reference::row_span> spans;
    for (int e = 0; e < count; ++e) spans.push_back({e / chunk * chunk, std::min(count, e / chunk * chunk + chunk)});
    return reference::span_attention(lane.attention(), spans, lane.values, with.sinks);
  }

  /// The most that two heads give in rows of (.1 .7), (.2 .6) and (.3 .2), whose rest the model's sinks take. No row
  /// is about the last entry.
  static void worked() {
    reference::row const of_sinks{std::log(.2), std::log(.5)};
    auto const query = [](double first, double second) { return reference::row{std::log(first), std::log(second)}; };
    reference::lane_attention const lane{.keys = {{1, 0}, {0, 1}, {1, 1}},
                                         .key_positions = {},
                                         .queries = {{query(.1, .7), query(.2, .6)}, {query(.3, .2), query(.3, .2)}},
                                         .query_positions = {},
                                         .scale = 1,
                                         .sinks = of_sinks};
    reference::row const most = reference::span_attention(lane, {{0, 2}, {0, 2}}, {}, 4);
    CHECK(most[0] == doctest::Approx(.3));
    CHECK(most[1] == doctest::Approx(.7));
    CHECK(most[2] == 0);
  }
};

}  // namespace kvpolicy_test::methods
