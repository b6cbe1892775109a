// SPDX-License-Identifier: Apache-2.0
// Rotation of a key's contiguous halves by the sum of two angles, for each instruction set.
#pragma once

#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Rotates channel i of a key with channel i + pairs by the sum of angle i of `a` and of `b`. The channels are
/// contiguous, at any address. A table of angles has the cosines of all pairs first, and then their sines. A product is
/// rounded before it is added to another one, so all instruction sets give the same bits.
struct rope_kernels {
  using function = void (*)(std::byte* key, int pairs, float const* a, float const* b);
  function f32 = nullptr;
  function f16 = nullptr;
  function bf16 = nullptr;

  [[nodiscard]] function of(codec element) const {
    return element == codec::f32 ? f32 : element == codec::f16 ? f16 : bf16;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY rope
#include <kvpolicy/ops/host/simd/each_isa.hpp>
