// SPDX-License-Identifier: Apache-2.0
// An output projection of random numbers for the values of a cache.
#pragma once

#include "support/elements.hpp"
#include "support/mock_cache.hpp"

namespace kvpolicy_test {

/// W_o of each layer, with `padding` elements behind every row.
class mock_projection {
 public:
  mock_projection(kv::shape const& model, kv::codec element, int width, int padding, std::uint64_t seed)
      : element_(element),
        dims_(model.value_dim != 0 ? model.value_dim : model.head_dim),
        width_(width),
        model_(model) {
    row_ = std::int64_t{dims_} * model.query_heads + padding;
    memory_.resize(as_size(row_ * width * model.layers * kv::bytes_of(element)));
    dice random(seed);
    for (std::int64_t i = 0; i < row_ * width * model.layers; ++i) write(i, random.real(1));
  }
  /// The number of a row's channel that a head multiplies with channel d of a value.
  void write(kv::lane at, int channel, int head, int d, double value) { write(index(at, channel, head, d), value); }

  [[nodiscard]] kv::output_projection view() const {
    kv::output_projection made{.base = memory_.data(), .element = element_, .dims = dims_, .width = width_};
    made.heads = model_.query_heads;
    made.channel = row_ * kv::bytes_of(element_);
    made.layer = made.channel * width_;
    return made;
  }

  /// The columns of the query heads of a lane: [head][channel][d].
  [[nodiscard]] std::vector<reference::matrix> heads_of(kv::lane at) const {
    std::vector<reference::matrix> made;
    for (int h = at.head * model_.group(); h < (at.head + 1) * model_.group(); ++h) {
      reference::matrix& rows = made.emplace_back();
      for (int c = 0; c < width_; ++c) {
        reference::row& row = rows.emplace_back();
        for (int d = 0; d < dims_; ++d) row.push_back(decoded(element_, at_index(index(at, c, h, d))));
      }
    }
    return made;
  }

 private:
  [[nodiscard]] std::int64_t index(kv::lane at, int channel, int head, int d) const {
    return (std::int64_t{at.layer} * width_ + channel) * row_ + head * dims_ + d;
  }
  [[nodiscard]] std::byte const* at_index(std::int64_t i) const { return memory_.data() + i * kv::bytes_of(element_); }
  void write(std::int64_t i, double value) { encode(element_, value, memory_.data() + i * kv::bytes_of(element_)); }

  kv::codec element_;
  int dims_, width_;
  kv::shape model_;
  std::int64_t row_ = 0;  ///< elements between rows
  std::vector<std::byte> memory_;
};

}  // namespace kvpolicy_test
