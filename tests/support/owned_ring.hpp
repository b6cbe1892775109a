// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/test.hpp"

namespace kvpolicy_test {

/// One remembered row: its position, and its numbers for each query head of the group.
using remembered = std::pair<int, reference::matrix>;

/// A ring for every lane.
class owned_ring {
 public:
  owned_ring(mock_cache const& of, int capacity)
      : model_(of.model()),
        capacity_(capacity),
        rows_(as_size(of.lane_count() * row_floats())),
        position_(as_size(of.lane_count() * capacity)),
        cursor_(as_size(of.lane_count() * 2)) {}
  owned_ring(owned_ring const&) = delete;
  owned_ring& operator=(owned_ring const&) = delete;

  [[nodiscard]] kv::query_ring_view view() {
    auto const table = [&](auto* data, std::int64_t row) {
      return kv::by_lane<std::remove_pointer_t<decltype(data)>>{data, row * model_.kv_heads * model_.layers,
                                                                row * model_.kv_heads, row};
    };
    return {capacity_,
            model_.group(),
            model_.head_dim,
            table(rows_.data(), row_floats()),
            table(position_.data(), capacity_),
            table(cursor_.data(), 2)};
  }

  [[nodiscard]] std::deque<remembered> content(kv::lane this_lane) {
    std::deque<remembered> all;
    auto const ring = view();
    for (int r = 0; r < ring.cursor.row(this_lane)[1]; ++r) {
      int const at = (ring.cursor.row(this_lane)[0] + r) % capacity_;
      remembered one{ring.position.row(this_lane)[at], {}};
      for (int h = 0; h < ring.group; ++h) {
        float const* const row = ring.rows.row(this_lane) + (h * capacity_ + at) * ring.dims;
        one.second.emplace_back(row, row + ring.dims);
      }
      all.push_back(one);
    }
    return all;
  }
  friend bool operator==(owned_ring const& a, owned_ring const& b) {
    return a.rows_ == b.rows_ && a.position_ == b.position_ && a.cursor_ == b.cursor_;
  }

 private:
  [[nodiscard]] int row_floats() const { return capacity_ * model_.group() * model_.head_dim; }
  kv::shape model_;
  int capacity_;
  std::vector<float> rows_;
  std::vector<int> position_, cursor_;
};

}  // namespace kvpolicy_test
