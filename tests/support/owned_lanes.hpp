// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvpolicy/kvpolicy.hpp>
#include <utility>

#include "support/dice.hpp"

namespace kvpolicy_test {

namespace kv = kvpolicy;

/// Lanes whose counts lie one after another, and so do their rows of positions.
inline kv::lanes lanes_over(std::vector<int>& count, std::vector<int>& position, int sequences, int layers, int heads,
                            int bound, int* in_flight = nullptr) {
  std::int64_t const layer = heads, sequence = std::int64_t{layers} * heads;
  return {.sequences = sequences,
          .layer_end = layers,
          .heads = heads,
          .capacity = bound,
          .count = {count.data(), sequence, layer, 1},
          .position = {position.data(), sequence * bound, layer * bound, bound},
          .in_flight = in_flight};
}

/// Lanes without a cache: so many entries in each, at the even positions.
class owned_lanes {
 public:
  owned_lanes(int sequences, int layers, int heads, int bound, std::vector<int> counts)
      : count_(std::move(counts)), in_flight_(as_size(sequences), 0) {
    for (std::size_t lane = 0; lane < count_.size(); ++lane) {
      for (int e = 0; e < bound; ++e) position_.push_back(2 * e);
    }
    lanes_ = lanes_over(count_, position_, sequences, layers, heads, bound, in_flight_.data());
  }
  explicit owned_lanes(int count) : owned_lanes(1, 1, 1, count > 0 ? count : 1, {count}) {}
  owned_lanes(owned_lanes const&) = delete;
  owned_lanes& operator=(owned_lanes const&) = delete;

  [[nodiscard]] kv::lanes const& view() const { return lanes_; }
  [[nodiscard]] int count(int lane) const { return count_[as_size(lane)]; }
  void set_drafts(int sequence, int drafts) { in_flight_[as_size(sequence)] = drafts; }

 private:
  std::vector<int> count_, position_, in_flight_;
  kv::lanes lanes_;
};

}  // namespace kvpolicy_test
