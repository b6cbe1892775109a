// SPDX-License-Identifier: Apache-2.0
// Lists of the ordinals of some entries, for each instruction set.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Each function writes ordinals in ascending order to `to`.
struct listing_kernels {
  /// The rows whose number is at least `least`, which no number is 2^31 below. Returns how many these are. Nothing is
  /// written after them.
  int (*rows)(int const* numbers, int count, int least, int* to);
  /// The entries whose bit is set among the first `count`; exactly `listed` bits are set. Nothing is written after
  /// them, and the bits of 32 entries are read at once, before the ordinal of any later entry is written.
  void (*bits)(std::uint32_t const* bits, int count, int listed, int* to);
  /// The signs of 32 numbers: bit i is that of number i.
  std::uint32_t (*signs)(int const* numbers);
  /// The entries whose mark is 1, not 0. Returns their number. `to` has an int for each mark, and what follows the
  /// ordinals is overwritten. The marks may be the last bytes of this memory: they are read first.
  int (*marked)(unsigned char const* marks, int count, int* to);
};

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY listing
#include <kvpolicy/ops/host/simd/each_isa.hpp>
