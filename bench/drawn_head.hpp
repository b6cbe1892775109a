// SPDX-License-Identifier: Apache-2.0
// A residual head of the paper's sizes, with weights drawn at random.
#pragma once

#include <kvpolicy/ops/residual.hpp>
#include <utility>
#include <vector>

#include "distributions.hpp"

namespace bench {

/// Weights of a head of the paper's sizes, drawn at random.
class drawn_head {
 public:
  explicit drawn_head(int dims) : values_(static_cast<std::size_t>(kv::residual_head::parameters(dims, 128, 256))) {
    noise from(5);
    for (float& each : values_) each = static_cast<float>(0.05 * (2 * from.uniform() - 1));
    float const* next = values_.data();
    auto const take = [&](int floats) { return std::exchange(next, next + floats); };
    int const phi = 3 * dims + 1;
    view_ = {.dims = dims, .width = 128, .hidden = 256, .alpha = 1};
    view_.w_q = take(128 * phi), view_.w_q_bias = take(128);
    view_.w_k = take(128 * dims), view_.w_k_bias = take(128);
    view_.w_v = take(128 * dims), view_.w_v_bias = take(128);
    view_.fc1 = take(256 * (phi + 128)), view_.fc1_bias = take(256);
    view_.fc2 = take(256), view_.fc2_bias = take(1);
  }
  [[nodiscard]] kv::residual_head const& view() const { return view_; }

 private:
  std::vector<float> values_;
  kv::residual_head view_;
};

}  // namespace bench
