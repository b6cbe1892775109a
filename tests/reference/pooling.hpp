// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "basics.hpp"

namespace kvpolicy_reference {

enum class pool_kind { none, average, maximum };

struct pooling {
  pool_kind kind = pool_kind::none;
  int width = 1;  ///< odd, so that the result is as long as the input
};

/// Pools the first `scores.size() - tail` scores among themselves; the last `tail` are returned as they came.
///
/// The average pads with zeros and divides by the whole width, at the edges too; the maximum pads with -inf. A NaN
/// makes every score that has it as a neighbour NaN.
inline row pooled(row const& scores, pooling const& pool, int tail) {
  require(pool.width >= 1 && pool.width % 2 == 1, "a pooling width is odd");
  require(tail >= 0, "a tail has a length");
  row result = scores;
  if (pool.kind == pool_kind::none) return result;
  int const prefix = static_cast<int>(scores.size()) - tail;
  int const half = pool.width / 2;
  for (int j = 0; j < prefix; ++j) {
    double sum = 0.0;
    double highest = -infinity;
    for (int neighbour = j - half; neighbour <= j + half; ++neighbour) {
      if (neighbour < 0 || neighbour >= prefix) continue;
      sum += scores[static_cast<std::size_t>(neighbour)];
      highest = larger(highest, scores[static_cast<std::size_t>(neighbour)]);
    }
    result[static_cast<std::size_t>(j)] = pool.kind == pool_kind::average ? sum / pool.width : highest;
  }
  return result;
}

}  // namespace kvpolicy_reference
