#pragma once

#include <cstddef>
#include <cstdint>
#include <kvpolicy/kvpolicy.hpp>
#include <utility>
#include <vector>

namespace kvpolicy_test {

namespace kv = kvpolicy;

/// Lanes without a cache: so many entries in each, at the even positions.
class owned_lanes {
 public:
  owned_lanes(int sequences, int layers, int heads, int bound, std::vector<int> counts)
      : count_(std::move(counts)), in_flight_(static_cast<std::size_t>(sequences), 0) {
    for (std::size_t lane = 0; lane < count_.size(); ++lane) {
      for (int e = 0; e < bound; ++e) position_.push_back(2 * e);
    }
    lanes_ = {.sequences = sequences,
              .layer_begin = 0,
              .layer_end = layers,
              .heads = heads,
              .capacity = bound,
              .count = {count_.data(), std::int64_t{layers} * heads, heads, 1},
              .position = {position_.data(), std::int64_t{layers} * heads * bound, std::int64_t{heads} * bound, bound},
              .in_flight = in_flight_.data()};
  }
  explicit owned_lanes(int count) : owned_lanes(1, 1, 1, count > 0 ? count : 1, {count}) {}
  owned_lanes(owned_lanes const&) = delete;
  owned_lanes& operator=(owned_lanes const&) = delete;

  [[nodiscard]] kv::lanes const& view() const { return lanes_; }
  [[nodiscard]] int count(int lane) const { return count_[static_cast<std::size_t>(lane)]; }
  void set_drafts(int sequence, int drafts) { in_flight_[static_cast<std::size_t>(sequence)] = drafts; }

 private:
  std::vector<int> count_, position_, in_flight_;
  kv::lanes lanes_;
};

}  // namespace kvpolicy_test
