// SPDX-License-Identifier: Apache-2.0
// Kernels of residual other than products of blocks, for each instruction set.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// A tile of 32 hidden units of a head, for each of some entries.
struct hidden_tile {
  static constexpr int block = 32;
  float const* products;  ///< [count][32]: weights times the entry's key and context
  float const* constant;  ///< [32]
  float const* slope;     ///< [32]: factor of the entry's rule score
  float const* last;      ///< [32]: weights of the output, fc2
  float const* rule;      ///< [count]
  int count;
};

struct residual_kernels {
  /// out[e] += sum over 32 hidden units of last * gelu(products + constant + slope * rule).
  void (*add_gelu_units)(hidden_tile const& tile, float* out) = nullptr;
  /// to[e][0 .. 31] = softmax of (from[e] + constant + slope * rule[e]). Rows of `to` are `stride` apart.
  void (*softmax_block)(float const* from, int count, float const* constant, float const* slope, float const* rule,
                        float* to, std::int64_t stride) = nullptr;
  /// One step of an online softmax over a block of 32 logits, of which the first `there` are used. They become
  /// e^(logit - row_max), and `shrink` becomes the factor for the sums so far.
  void (*advance_softmax)(float* values, int count, int there, float* row_max, float* sum, float* shrink) = nullptr;
  /// to[e][0 .. 31] = to[e] * shrink[e] + from[e]. Rows of `to` are `stride` apart. With shrink == null, to = from.
  void (*scale_and_add)(float const* from, int count, float const* shrink, float* to, std::int64_t stride) = nullptr;
  /// to[e][0 .. 31] = from[e] + constant + slope * rule[e]. Rows of `to` are `stride` apart.
  void (*add_bias)(float const* from, int count, float const* constant, float const* slope, float const* rule,
                   float* to, std::int64_t stride) = nullptr;
  /// to[d] = from[d] / by.
  void (*divide)(float const* from, int dims, float by, float* to) = nullptr;
};

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY residual
#include <kvpolicy/ops/host/simd/each_isa.hpp>
