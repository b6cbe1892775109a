// SPDX-License-Identifier: Apache-2.0
// How unevenly the channels of rows lie in bounds, for each instruction set.
#pragma once

#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Writes for each of `count` rows of `dims` contiguous elements the sum over channels of (z - mean of z)^2, where z is
/// (x - low) inverse. `z` has room for `dims` floats. With every line of a row a line of the row `ahead` at the same
/// index is prefetched into the second-level cache. Rows `ahead` are not read.
struct spread_kernels {
  using function = void (*)(std::byte const* const* rows, std::byte const* const* ahead, int count, int dims,
                            float const* low, float const* inverse, float* z, float* out);
  function f32 = nullptr;
  function f16 = nullptr;
  function bf16 = nullptr;
  /// Replaces numbers that are at most 0 or NaN by e^x, and returns their sum.
  float (*powers)(float* of, int count) = nullptr;

  [[nodiscard]] function of(codec element) const {
    return element == codec::f32 ? f32 : element == codec::f16 ? f16 : bf16;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY spread
#include <kvpolicy/ops/host/simd/each_isa.hpp>
