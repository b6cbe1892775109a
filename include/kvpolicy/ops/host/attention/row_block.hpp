// SPDX-License-Identifier: Apache-2.0
// Blocks of packed query rows, and the state of their softmax.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/host/kernels/products.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// Reduces `value` into `into`; the first value of a series replaces it.
inline void fold(float& into, float value, reduction how, bool first) {
  if (first) {
    into = value;
  } else if (how == reduction::max) {
    into = !(into >= value) && into == into ? value : into;  // NaN propagates from either side
  } else {
    into += value;
  }
}

/// A block of packed query rows, and the state of their softmax.
struct row_block {
  float* packed = nullptr;
  int rows = 0;
  block_products const* products = nullptr;
  block_softmax const* softmax = nullptr;
  int visible[most_rows] = {};
  float scale[most_rows] = {};
  float lse[most_rows] = {};
  float row_max[most_rows] = {};
  float sum[most_rows] = {};
  float sink[most_rows] = {};  ///< a logit that is in the softmax and belongs to no entry, or `no_sink`

  static constexpr float no_sink = -std::numeric_limits<float>::infinity();

  /// Begins the softmax of every row: only the sink has been visible.
  void begin_softmax() {
    std::copy_n(sink, most_rows, row_max);
    for (int r = 0; r < most_rows; ++r) sum[r] = sink[r] == no_sink ? 0.0f : 1.0f;
  }

  /// Sets the number of rows to 4, 16 or 32. Not all of them need be used.
  void set_rows(isa simd_level, int count) {
    rows = count;
    products = &logits_of_isa[simd_level][count];
    softmax = &softmax_of_isa[simd_level][count];
  }
};

/// The query rows of one lane: `count` rows of each query head, from `begin` on.
struct row_range {
  int begin = 0;
  int count = 0;
  int group = 1;
};

}  // namespace KVPOLICY_NAMESPACE::detail
