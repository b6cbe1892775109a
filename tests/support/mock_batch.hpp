// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvpolicy/kvpolicy.hpp>

#include "reference/attention.hpp"
#include "support/mock_cache.hpp"

namespace kvpolicy_test {

/// Fills a cache: ragged lanes with holes in their positions, of which the last `drafts` entries are in flight.
inline void fill(mock_cache& cache, bool drafts) {
  dice& random = cache.random();
  int const bound = cache.options().bound;
  for (int s = 0; s < cache.options().sequences; ++s) {
    int const in_flight = drafts ? random.below(std::min(3, bound)) : 0;
    int const length = random.between(0, bound - in_flight + 6);  // tokens of the sequence that are committed
    cache.set_drafts(s, in_flight);
    for (int i = 0; i < cache.lane_count(); ++i) {
      if (cache.lane_at(i).sequence != s) continue;
      int const most = std::min(length, bound - in_flight);
      int const count = random.chance(50) ? most : random.below(most + 1);
      std::vector<int> positions = random.subset(length, count);
      for (int d = 0; d < in_flight; ++d) positions.push_back(length + d);
      if (cache.options().shared_entries && cache.lane_at(i).layer + cache.lane_at(i).head > 0) {
        positions = cache.positions(cache.lane_at(i), cache.count(cache.lane_at(i)));
      }
      cache.put(cache.lane_at(i), positions);
    }
  }
}

/// A cache that is filled at once.
struct filled_cache : mock_cache {
  explicit filled_cache(mock_options const& how, bool drafts = true) : mock_cache(how) { fill(*this, drafts); }
};

/// Query rows of every sequence, layer and query head, with strides of their own; a ring if `bound` exceeds the
/// rows.
class mock_queries {
 public:
  /// Signals are never fp8: then the rows are f32.
  mock_queries(mock_cache const& of, kv::codec element, int rows, int capacity)
      : model_(of.model()), element_(kv::is_fp8(element) ? kv::codec::f32 : element), rows_(rows), capacity_(capacity) {
    auto const all = as_size(of.options().sequences);
    position_.assign(all * as_size(capacity), 1 << 30);
    cursor_.assign(all * 2, 0);
    memory_.assign(all * as_size(model_.layers * model_.query_heads * capacity * model_.head_dim) *
                       as_size(kv::bytes_of(element_)),
                   std::byte{0x5A});
    for (std::size_t s = 0; s < all; ++s) {
      cursor_[2 * s] = ring() ? static_cast<int>(s + 3) % capacity : 0;
      cursor_[2 * s + 1] = rows;
    }
  }
  mock_queries(mock_queries const&) = delete;
  mock_queries& operator=(mock_queries const&) = delete;

  [[nodiscard]] bool ring() const { return capacity_ > rows_; }
  [[nodiscard]] int rows() const { return rows_; }
  /// Rows of one sequence, where a ring says how many are valid.
  [[nodiscard]] int valid(int sequence) const { return cursor_[as_size(2 * sequence + 1)]; }
  void set_valid(int sequence, int rows) { cursor_[as_size(2 * sequence + 1)] = rows; }

  [[nodiscard]] kv::query_view view() const {
    std::int64_t const row = std::int64_t{model_.head_dim} * kv::bytes_of(element_);
    std::int64_t const layer = row * model_.query_heads * capacity_;
    kv::by_lane<int const> const first{cursor_.data(), 2, 0, 0}, valid{cursor_.data() + 1, 2, 0, 0};
    return {memory_.data(),
            element_,
            model_.head_dim,
            layer * model_.layers,
            layer,
            row,
            row * model_.query_heads,
            model_.query_heads,
            capacity_,
            {position_.data(), capacity_, 0, 0},
            ring() ? valid : kv::by_lane<int const>{},
            ring() ? first : kv::by_lane<int const>{},
            {lse_.empty() ? nullptr : lse_.data(), std::int64_t{model_.layers} * model_.query_heads * capacity_,
             std::int64_t{model_.query_heads} * capacity_, capacity_}};
  }

  /// From now on each row comes with the log-sum-exp of its logits: 0 until `set_lse` says what it is.
  void bring_lse() { lse_.assign(position_.size() * as_size(model_.layers * model_.query_heads), 0); }
  void set_lse(int sequence, int layer, int query_head, int row, double lse) {
    int const before = ((sequence * model_.layers + layer) * model_.query_heads + query_head) * capacity_;
    lse_[as_size(before + stored(sequence, row))] = static_cast<float>(lse);
  }

  void set_position(int sequence, int row, int position) {
    position_[as_size(sequence * capacity_ + stored(sequence, row))] = position;
  }
  [[nodiscard]] int position(int sequence, int row) const {
    return position_[as_size(sequence * capacity_ + stored(sequence, row))];
  }
  void write(int sequence, int layer, int query_head, int row, reference::row const& values) {
    for (std::size_t d = 0; d < values.size(); ++d)
      encode(element_, values[d], at(sequence, layer, query_head, row, d));
  }
  [[nodiscard]] reference::row row(int sequence, int layer, int query_head, int row) {
    reference::row values;
    for (int d = 0; d < model_.head_dim; ++d) {
      values.push_back(decoded(element_, at(sequence, layer, query_head, row, as_size(d))));
    }
    return values;
  }

 private:
  [[nodiscard]] int stored(int sequence, int row) const { return (cursor_[as_size(2 * sequence)] + row) % capacity_; }
  std::byte* at(int sequence, int layer, int query_head, int row, std::size_t dim) {
    int const before = ((sequence * model_.layers + layer) * capacity_ + stored(sequence, row)) * model_.query_heads;
    return memory_.data() + (as_size((before + query_head) * model_.head_dim) + dim) * as_size(kv::bytes_of(element_));
  }

  kv::shape model_;
  kv::codec element_;
  int rows_;
  int capacity_;
  std::vector<std::byte> memory_;
  std::vector<int> position_, cursor_;
  std::vector<float> lse_;
};

/// Rows at random ascending positions, some of them after the last committed entry, some before all that is left.
inline void fill(mock_queries& queries, mock_cache& cache, content rows) {
  dice& random = cache.random();
  for (int s = 0; s < cache.options().sequences; ++s) {
    auto const positions = random.subset(cache.options().bound + 10, queries.rows());
    for (int r = 0; r < queries.rows(); ++r) {
      queries.set_position(s, r, positions[as_size(r)]);
      for (int i = 0; i < cache.model().layers * cache.model().query_heads; ++i) {
        reference::row values(as_size(cache.model().head_dim));
        for (double& each : values) each = rows == content::few ? random.between(-1, 1) : random.real(2.0);
        if (rows == content::troubled && random.chance(10)) values[0] = std::numeric_limits<double>::quiet_NaN();
        queries.write(s, i / cache.model().query_heads, i % cache.model().query_heads, r, values);
      }
    }
  }
}

/// The same, as the rows of the current forward: each sequence's last row is not older than its newest entry.
inline void fill_current(mock_queries& queries, mock_cache& cache, content rows) {
  fill(queries, cache, rows);
  for (int i = 0; i < cache.lane_count() && queries.rows() > 0; ++i) {
    kv::lane const lane = cache.lane_at(i);
    int const entries = cache.committed(lane);
    if (entries == 0) continue;
    int const newest = cache.positions(lane, entries).back();
    int const last = queries.rows() - 1;
    if (queries.position(lane.sequence, last) < newest) queries.set_position(lane.sequence, last, newest);
  }
}

/// Rows that are filled at once, at any positions or as those of the current forward.
struct filled_queries : mock_queries {
  filled_queries(mock_cache& of, kv::codec element, int rows, int capacity)
      : mock_queries(of, element, rows, capacity) {
    fill(*this, of, content::smooth);
  }
};
struct current_queries : mock_queries {
  current_queries(mock_cache& of, kv::codec element, int rows, int capacity)
      : mock_queries(of, element, rows, capacity) {
    fill_current(*this, of, content::smooth);
  }
};

/// The committed entries of a lane and the valid rows of its query heads, the `last` of them if it is above 0.
inline reference::lane_attention all_rows_of(mock_cache& cache, mock_queries& queries, kv::lane one, int last = 0) {
  reference::lane_attention lane;
  int const valid = queries.valid(one.sequence), group = cache.model().group();
  lane.keys = cache.rows(of::keys, one, cache.committed(one));
  lane.queries.resize(as_size(group));
  for (int i = 0; i < group * valid; ++i) {
    int const r = i % valid, h = i / valid;
    if (last > 0 && r < valid - last) continue;
    lane.queries[as_size(h)].push_back(queries.row(one.sequence, one.layer, one.head * group + h, r));
  }
  return lane;
}

/// The lane as the reference sees it: committed entries, and the rows that are not after the last of them.
inline reference::lane_attention reference_lane(mock_cache& cache, mock_queries& queries, kv::lane this_lane) {
  int const count = cache.committed(this_lane);
  reference::lane_attention lane;
  lane.keys = cache.rows(of::keys, this_lane, count);
  lane.key_positions = cache.positions(this_lane, count);
  lane.queries.resize(as_size(cache.model().group()));
  for (int r = 0; r < queries.valid(this_lane.sequence); ++r) {
    int const position = queries.position(this_lane.sequence, r);
    if (count == 0 || position > lane.key_positions.back()) continue;
    lane.query_positions.push_back(position);
    for (int h = 0; h < cache.model().group(); ++h) {
      lane.queries[as_size(h)].push_back(
          queries.row(this_lane.sequence, this_lane.layer, this_lane.head * cache.model().group() + h, r));
    }
  }
  return lane;
}

}  // namespace kvpolicy_test
