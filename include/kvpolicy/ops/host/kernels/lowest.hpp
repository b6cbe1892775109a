// SPDX-License-Identifier: Apache-2.0
// The lowest score of a row, for each instruction set.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// Positions [low, high).
struct position_range {
  int low;
  int high;

  /// True if every position is in it.
  [[nodiscard]] constexpr bool is_all() const { return low <= 0 && high == std::numeric_limits<int>::max(); }
  [[nodiscard]] constexpr bool has(int position) const { return position >= low && position < high; }
};
inline constexpr position_range all_positions{std::numeric_limits<int>::min(), std::numeric_limits<int>::max()};

/// NaN is below every number. `*nan` grows by the number of NaN among the entries that compete.
struct lowest_kernels {
  /// The index of the lowest of `count` >= 1 scores; of equal scores, the last one.
  int (*last_lowest)(float const* scores, int count, std::int64_t* nan);
  /// The same among the entries whose positions are in a range; of equal scores, the one of the highest position. -1 if
  /// there is no such entry.
  int (*lowest_of)(float const* scores, int const* position, int count, position_range positions, std::int64_t* nan);
  /// The number of positions that are `limit` or higher.
  int (*count_from)(int const* position, int count, int limit);
};

/// The entry of the highest position in the range whose score is NaN, or -1. Counts them all. `position` may be null:
/// then entries are in the order of their positions.
inline int newest_nan(float const* scores, int const* position, int count, position_range positions,
                      std::int64_t* nan) {
  int found = -1;
  for (int e = 0; e < count; ++e) {
    if (scores[e] == scores[e] || (position != nullptr && !positions.has(position[e]))) continue;
    ++*nan;
    if (found < 0 || position == nullptr || position[e] > position[found]) found = e;
  }
  return found;
}

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY lowest
#include <kvpolicy/ops/host/simd/each_isa.hpp>
