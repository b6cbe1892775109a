// SPDX-License-Identifier: Apache-2.0
// Highest and lowest values of each channel over rows, for each instruction set.
//
// Floats are mapped to integers with the same order: -0 is below +0, and a NaN is beyond the infinity of its sign. So
// no NaN is lost in a comparison, and 16-bit types need no conversion. The mapping is its own inverse.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// The mapped value of a number's bits, of 16 or of 32 bits.
template <class Number>
[[nodiscard]] constexpr Number ordered(Number bits) {
  return static_cast<Number>(bits ^ ((bits >> (8 * sizeof(Number) - 1)) & std::numeric_limits<Number>::max()));
}

/// Computes the maximum and minimum of each channel over `count` rows, and of the values in `high` and `low` unless
/// `overwrite`. Those are mapped.
template <class Number>
using bound_kernel = void (*)(std::byte const* const* rows, int count, int dims, bool overwrite, Number* high,
                              Number* low);

struct bounds_kernels {
  bound_kernel<std::int32_t> wide;
  bound_kernel<std::int16_t> narrow;

  template <class Number>
  [[nodiscard]] bound_kernel<Number> of() const {
    if constexpr (sizeof(Number) == 4) {
      return wide;
    } else {
      return narrow;
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY bounds
#include <kvpolicy/ops/host/simd/each_isa.hpp>
