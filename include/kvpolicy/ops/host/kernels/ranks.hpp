// SPDX-License-Identifier: Apache-2.0
// Ranks of a few numbers, for instruction sets that compare many of them at once.
#pragma once

#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Writes for each of `count` numbers how many are below it, or equal and behind it. Behind the numbers, up to the next
/// multiple of sixteen, there are NaN. Null where sorting is faster.
struct ranks_kernels {
  void (*worse)(float const* of, int count, int* to) = nullptr;
};

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY ranks
#include <kvpolicy/ops/host/simd/each_isa.hpp>
