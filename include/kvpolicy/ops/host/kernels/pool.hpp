// SPDX-License-Identifier: Apache-2.0
// Pools of the scores of neighbours, for each instruction set.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>
#include <kvpolicy/ops/pool.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The pool of entry `at`.
inline float pooled(pooling const& by, float const* scores, int count, int at) {
  int const reach = by.width / 2;
  int const first = std::max(0, at - reach);
  int const last = std::min(count - 1, at + reach);
  float value = scores[first];
  for (int e = first + 1; e <= last; ++e) {
    if (by.how == pooling::kind::avg) {
      value += scores[e];
    } else if (value == value && !(scores[e] <= value)) {  // higher, or NaN
      value = scores[e];
    }
  }
  return by.how == pooling::kind::avg ? value / static_cast<float>(by.width) : value;
}

/// Each function pools entries [begin, end), whose neighbours are all there, as `pooled` does, and returns where it
/// stopped: at `end`, or at `begin` if these are fewer than a few vectors. Neighbours are taken in the same order, so
/// results are the same bits.
struct pool_kernels {
  using function = int (*)(pooling const& by, float const* scores, int begin, int end, float* to);
  function maximum;
  function mean;
};

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY pool
#include <kvpolicy/ops/host/simd/each_isa.hpp>
