// SPDX-License-Identifier: Apache-2.0
// A layer of two lanes whose scores a test gives.
#pragma once

#include "support/test.hpp"

namespace kvpolicy_test {

/// All entries of both lanes are there; keys and values are zeros until a test fills them.
struct scored_layer {
  int entries;
  std::vector<float> scores;
  std::vector<int> counts, positions;
  kv::shape model{.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 4};
  std::vector<float> keys, values;
  kv::cache cache;

  explicit scored_layer(int count)
      : entries(count),
        scores(as_size(2 * count)),
        counts(2, count),
        positions(as_size(2 * count)),
        keys(as_size(8 * count)),
        values(keys),
        cache(kv::contiguous_cache(keys.data(), values.data(), model, count, counts.data(), positions.data())) {
    for (int i = 0; i < 2 * count; ++i) positions[as_size(i)] = i % count;
  }
  scored_layer(scored_layer&&) = default;  // the cache points into memory that moves along
  scored_layer& operator=(scored_layer&&) = delete;

  [[nodiscard]] kv::external_scores given() const { return {{scores.data(), 0, 2 * entries, entries}}; }
  [[nodiscard]] std::vector<double> of_lane(int lane) const {
    auto const begin = scores.begin() + std::ptrdiff_t{lane} * entries;
    return {begin, begin + entries};
  }
};

}  // namespace kvpolicy_test
