// SPDX-License-Identifier: Apache-2.0
// Rows that become columns, for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int heads_of_a_tile = 8;

struct transpose_kernels {
  /// to[c * stride + r] = from[r][c] of `rows` rows and `columns` columns. A zero becomes +0.
  void (*rows)(float const* const* from, int rows, int columns, float* to, std::int64_t stride) = nullptr;
  /// Writes the numbers of eight heads and `count` tokens as floats, a zero as -0: to[head][token]. The numbers of a
  /// token are contiguous, and tokens are `step` bytes apart. Returns how many tokens were written, from the first on:
  /// whole vectors of them.
  using heads_function = int (*)(std::byte const* from, std::int64_t step, int count, float* const* to);
  heads_function heads_f32 = nullptr;
  heads_function heads_bf16 = nullptr;

  /// Null for elements without such code.
  [[nodiscard]] heads_function heads_of(codec element) const {
    return element == codec::f32 ? heads_f32 : element == codec::bf16 ? heads_bf16 : nullptr;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY transpose
#include <kvpolicy/ops/host/simd/each_isa.hpp>
