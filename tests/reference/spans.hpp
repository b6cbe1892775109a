// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "attention.hpp"

namespace kvpolicy_reference {

/// The entries [begin, end) that a row is about.
struct row_span {
  int begin = 0;
  int end = 0;
  friend bool operator==(row_span const&, row_span const&) = default;
};

/// The most that rows about an entry give to it. A row sees the first `sinks` entries before its span, the span, and
/// of the rows of equal spans that stand around it the keys of those up to itself; `own` is empty if rows have no keys.
/// `positions` of the lane are not read.
inline row span_attention(lane_attention const& lane, std::vector<row_span> const& spans, matrix const& own,
                          int sinks) {
  row most(lane.keys.size(), 0.0);
  for (std::size_t first = 0, end = 0; first < spans.size(); first = end) {
    row_span const about = spans[first];
    for (end = first; end < spans.size() && spans[end] == about;) ++end;
    auto const near = static_cast<std::size_t>(std::min(sinks, about.begin));
    auto const begin = static_cast<std::size_t>(about.begin), last = static_cast<std::size_t>(about.end);
    for (std::size_t h = 0; h < lane.queries.size(); ++h) {
      for (std::size_t r = first; r < end && begin < last; ++r) {
        row logits;
        auto const add = [&](row const& key) { logits.push_back(attention_logit(lane, lane.queries[h][r], key)); };
        for (std::size_t e = 0; e < near; ++e) add(lane.keys[e]);
        for (std::size_t e = begin; e < last; ++e) add(lane.keys[e]);
        for (std::size_t i = first; i <= r && !own.empty(); ++i) add(own[i]);
        row const p =
            softmax(logits, std::vector<bool>(logits.size(), true), lane.sinks.empty() ? -infinity : lane.sinks[h]);
        for (std::size_t e = begin; e < last; ++e) most[e] = larger(most[e], p[near + e - begin]);
      }
    }
  }
  return most;
}

}  // namespace kvpolicy_reference
