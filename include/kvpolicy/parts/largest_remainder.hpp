// SPDX-License-Identifier: Apache-2.0
// Rounding of real shares to whole entries whose sum is exact.
#pragma once

#include <cstdint>
#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The whole entries of a share. The small term makes up for a share that was rounded down.
KVPOLICY_HD constexpr int whole(double share) { return static_cast<int>(share + 1e-9); }

/// The least whole number of entries that is not below a share, but for the small term.
KVPOLICY_HD constexpr int rounded_up(double share) {
  double const above = share - 1e-9;
  int const down = above > 0 ? static_cast<int>(above) : 0;
  return down < above ? down + 1 : down;
}

/// The fraction of a share, in units of 1e-9.
KVPOLICY_HD constexpr std::int64_t remainder(double share) {
  double const part = share - whole(share);
  return static_cast<std::int64_t>(1e9 * (part > 0 ? part : 0) + 0.5);
}

/// The share of `layer` in whole entries. `share(l)` is the real share of each of the layers [0, layers), and `total`
/// is the sum of the whole ones: each layer has the whole part of its share, and the entries that are left go to the
/// largest fractions, one each. Of equal fractions the lower layer comes first.
template <class Share>
KVPOLICY_HD constexpr int by_largest_remainder(int layer, int layers, std::int64_t total, Share const& share) {
  std::int64_t rest = total;
  for (int l = 0; l < layers; ++l) rest -= whole(share(l));
  std::int64_t const mine = remainder(share(layer));
  for (int l = 0; l < layers; ++l) {
    std::int64_t const other = remainder(share(l));
    rest -= other > mine || (other == mine && l < layer) ? 1 : 0;
  }
  return whole(share(layer)) + (rest > 0 ? 1 : 0);
}

}  // namespace KVPOLICY_NAMESPACE::detail
