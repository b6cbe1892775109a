// SPDX-License-Identifier: Apache-2.0
// Divisions by numbers that the host knows, which take a device two instructions.
#pragma once

#include <cstdint>
#include <kvpolicy/core/lanes.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Divides numbers from 0 below 2^31 by a number that is at least 2: Granlund and Montgomery, "Division by invariant
/// integers using multiplication", theorem 4.2.
struct divisor {
  unsigned factor;
  int shift;

  [[nodiscard]] static divisor of(unsigned by) {
    int bits = 1;
    while (std::uint64_t{1} << bits < by) ++bits;
    return {static_cast<unsigned>(((std::uint64_t{1} << (31 + bits)) + by - 1) / by), bits - 1};
  }
  [[nodiscard]] KVPOLICY_HD unsigned quotient(unsigned of) const {
    return static_cast<unsigned>(std::uint64_t{of} * factor >> 32) >> shift;
  }
};

/// Finds a lane by its index, as `lanes::at` does, without its two divisions. There are fewer than 2^30 lanes.
struct lane_finder {
  divisor heads;
  divisor layers;

  explicit lane_finder(lanes const& batch) : heads(of_twice(batch.heads)), layers(of_twice(batch.layers())) {}
  [[nodiscard]] KVPOLICY_HD lane at(lanes const& batch, int i) const {
    auto const index = static_cast<unsigned>(i);
    unsigned const row = heads.quotient(2 * index);
    unsigned const sequence = layers.quotient(2 * row);
    auto const layer = static_cast<int>(row - sequence * static_cast<unsigned>(batch.layers()));
    auto const head = static_cast<int>(index - row * static_cast<unsigned>(batch.heads));
    return {batch.sequence_begin + static_cast<int>(sequence), batch.layer_begin + layer, head};
  }

 private:
  /// Both sides of a division are doubled, because a divisor is at least 2.
  [[nodiscard]] static divisor of_twice(int by) { return divisor::of(by > 0 ? 2 * static_cast<unsigned>(by) : 2); }
};

}  // namespace KVPOLICY_NAMESPACE::detail
