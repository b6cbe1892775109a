// SPDX-License-Identifier: Apache-2.0
// A kernel that reads memory once, the floor that benchmarks on a device compare with.
#pragma once

#include <cstddef>
#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE::bench::detail {

/// Reads so many `Words`, uint4, once. Nothing is written unless they fold to one certain number, which the compiler
/// does not know to be rare.
template <class Words>
__global__ void read_words(Words const* from, std::size_t words, unsigned* to) {
  unsigned folded = 0;
  std::size_t const step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step) {
    Words const one = from[i];
    folded ^= one.x ^ one.y ^ one.z ^ one.w;
  }
  if (folded == 0x9E3779B9u) *to = folded;
}

}  // namespace KVPOLICY_NAMESPACE::bench::detail
