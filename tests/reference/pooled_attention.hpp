// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "attention.hpp"
#include "pooling.hpp"

namespace kvpolicy_reference {

/// [head][row][entry]: the attention of the last rows of each query head; 0: of all.
inline std::vector<matrix> attention_of_last_rows(lane_attention const& lane, int last_rows) {
  std::vector<matrix> all = attention_weights(lane, {});
  for (matrix& head : all) {
    std::ptrdiff_t const rows = static_cast<std::ptrdiff_t>(head.size());
    if (last_rows > 0 && rows > last_rows) head.erase(head.begin(), head.end() - last_rows);
  }
  return all;
}

/// A row pooled over all entries but the last `tail`, of which the result has none, with the mass that it had there.
inline row pooled_with_mass(row one, pooling const& pool, int tail) {
  one.resize(one.size() - std::min(one.size(), static_cast<std::size_t>(tail)));
  double mass = 0, after = 0;
  for (double const each : one) mass += each;
  one = pooled(one, pool, 0);
  for (double const each : one) after += each;
  for (double& each : one) each = mass == 0 && after == 0 ? 0 : each * mass / after;
  return one;
}

/// The mean over rows and heads, and the most of any pooled row; 0 in the tail.
struct pooled_attention {
  row mean, most;
};
inline pooled_attention pooled_attention_of(std::vector<matrix> const& heads, std::size_t entries, pooling const& pool,
                                            int tail) {
  pooled_attention made{row(entries, 0.0), row(entries, 0.0)};
  for (matrix const& head : heads) {
    for (row const& one : head) {
      double const rows = static_cast<double>(heads.size() * head.size());
      for (std::size_t e = 0; e < entries; ++e) made.mean[e] += one[e] / rows;
      row const after = pooled_with_mass(one, pool, tail);
      for (std::size_t e = 0; e < after.size(); ++e) made.most[e] = larger(made.most[e], after[e]);
    }
  }
  return made;
}

/// How many of the best scores, in their order, have a sum below the limit. `margin` becomes the least distance of any
/// such sum to the limit.
inline int covered(row scores, double limit, double& margin) {
  std::sort(scores.begin(), scores.end(), [](double a, double b) { return a > b; });
  double sum = 0;
  int count = 0;
  for (double const each : scores) {
    sum += each;
    margin = std::min(margin, std::fabs(sum - limit));
    count += sum < limit ? 1 : 0;
  }
  return count;
}

}  // namespace kvpolicy_reference
