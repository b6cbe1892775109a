// SPDX-License-Identifier: Apache-2.0
// DuoAttention's table of retrieval heads, computed from the weights that its authors publish.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/core/contract/error.hpp>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// The table of retrieval heads for `head_table`: 0 for the fraction `sparsity` of heads with the lowest learned
/// weights, 1 for the others.
///
/// - in: `alpha` has one weight for each head, layer-major, and is clipped to 0 .. 1. The threshold is the quantile of
///   the released code, interpolated linearly between neighbours; heads at the threshold are retrieval heads. If
///   `sparsity` is 0 or less, all heads are retrieval heads; if it is 1 or more, none is.
/// - ties: the released code breaks them by noise. Here the lower (layer, head) of equal weights counts as the larger.
/// - throws: `invalid_argument` if a weight or `sparsity` is NaN.
[[nodiscard]] inline std::vector<float> retrieval_heads(std::span<float const> alpha, double sparsity) {
  expects(!std::isnan(sparsity), "retrieval_heads", "sparsity", sparsity, "it is a fraction of the heads");
  for (float const each : alpha) {
    expects(!std::isnan(each), "retrieval_heads", "alpha", each, "heads are ordered by it");
  }
  std::vector<float> table(alpha.size(), 1.0f);
  std::vector<std::size_t> order(alpha.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {  // with equal weights the later head first
    return std::pair(std::clamp(alpha[a], 0.0f, 1.0f), b) < std::pair(std::clamp(alpha[b], 0.0f, 1.0f), a);
  });
  // If weights are distinct, those below the quantile at rank r = sparsity (n - 1) are the ones with ranks below r.
  double const rank = sparsity * (static_cast<double>(alpha.size()) - 1);
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (sparsity >= 1 || (sparsity > 0 && static_cast<double>(i) < rank)) table[order[i]] = 0.0f;
  }
  return table;
}

}  // namespace KVPOLICY_NAMESPACE
