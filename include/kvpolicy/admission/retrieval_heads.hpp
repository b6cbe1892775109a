// DuoAttention's table of heads, from the numbers that its authors publish.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/core/error.hpp>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// Which heads retrieve: 1 for those whose learned weight is not among the lowest fraction `sparsity`, 0 for the rest.
///
/// - in: `alpha`, one a head, layer-major, clipped to 0 .. 1. The threshold is the released code's quantile, linear
///   between neighbours; heads at it retrieve. Its authors break ties by noise; here the lower (layer, head) of equal
///   weights counts as the larger. 0 or less: all retrieve; 1 or more: none.
/// - throws: `invalid_argument` if a number or the fraction is NaN.
[[nodiscard]] inline std::vector<float> retrieval_heads(std::span<float const> alpha, double sparsity) {
  expects(!std::isnan(sparsity), "retrieval_heads", "sparsity", sparsity, "it is a fraction of the heads");
  for (float const each : alpha) {
    expects(!std::isnan(each), "retrieval_heads", "alpha", each, "heads are ordered by it");
  }
  std::vector<float> table(alpha.size(), 1.0f);
  std::vector<std::size_t> order(alpha.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {  // of equal weights the later head first
    return std::pair(std::clamp(alpha[a], 0.0f, 1.0f), b) < std::pair(std::clamp(alpha[b], 0.0f, 1.0f), a);
  });
  // Distinct weights below the quantile at rank r = sparsity (n - 1) are those of ranks below r.
  double const rank = sparsity * (static_cast<double>(alpha.size()) - 1);
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (sparsity >= 1 || (sparsity > 0 && static_cast<double>(i) < rank)) table[order[i]] = 0.0f;
  }
  return table;
}

}  // namespace KVPOLICY_NAMESPACE
