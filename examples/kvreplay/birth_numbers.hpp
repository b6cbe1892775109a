// SPDX-License-Identifier: Apache-2.0
// The numbers that the entries of a trace are born with.
#pragma once

#include <string>
#include <vector>

#include "results.hpp"
#include "trace.hpp"

namespace kvreplay {

/// The tensor `birth.NAME` in float32, for every lane. Those of a token, [N], are the same in every lane.
class birth_numbers {
 public:
  void read(trace const& of, std::string const& name) {
    auto const found = of.birth.find(name);
    if (found == of.birth.end()) refuse("birth." + name, "missing", "the policy ranks entries by it: --set name=");
    entries_ = of.entries();
    heads_ = of.shape().kv_heads;
    std::int64_t const all = std::int64_t{of.shape().layers} * heads_ * entries_;
    values_.resize(size(all));
    for (std::int64_t i = 0; i < all; ++i) values_[size(i)] = found->second.value(i % found->second.count());
  }
  [[nodiscard]] bool there() const { return !values_.empty(); }

  /// Those of the entries [begin, end).
  [[nodiscard]] kv::entry_numbers numbers(int begin, int end) const {
    std::int64_t const row = 4 * entries_;
    return {.base = reinterpret_cast<std::byte const*>(values_.data() + begin),
            .layer = row * heads_,
            .head = row,
            .entry = 4,
            .entries = end - begin};
  }

 private:
  std::vector<float> values_;  ///< [lanes][entries]
  std::int64_t entries_ = 0;
  std::int64_t heads_ = 0;
};

}  // namespace kvreplay
