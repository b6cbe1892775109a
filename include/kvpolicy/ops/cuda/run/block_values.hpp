// SPDX-License-Identifier: Apache-2.0
// What the threads of a block pass to collectives and get from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE {

/// One thread's part of a 16 x 16 matrix of 16-bit numbers that a warp holds, two numbers per register, the first in
/// the lower bits. The layout is that of the A fragment of PTX's mma.m16n8k16. With g = lane / 4 and t = lane % 4, the
/// registers hold columns 2t and 2t + 1 of row g, the same of row g + 8, then columns 2t + 8 and 2t + 9 of row g and of
/// row g + 8.
struct alignas(16) fragment_16x16 {
  std::uint32_t of[4];
};
/// The same of a 16 x 8 matrix (the B fragment): rows 2t and 2t + 1 of column g, then rows 2t + 8 and 2t + 9 of it.
struct fragment_16x8 {
  std::uint32_t of[2];
};
/// The same of a 16 x 8 matrix of floats (the C and D fragments): columns 2t and 2t + 1 of row g, then of row g + 8.
struct fragment_of_floats {
  float of[4];
};

/// What an exclusive prefix sum over a block gives to each thread.
template <class T>
struct prefix_sum {
  T before;  ///< the sum over lower threads
  T all;     ///< the sum over all threads
};

/// Shared memory of one collective of a block (`reduce`, `exclusive_sum`, `rank`). Between two collectives with the
/// same storage there must be a `sync`.
struct alignas(16) collective_storage {
  std::byte of[512];
};
/// How many numbers of each thread `sort` can sort.
inline constexpr int sorted_of_a_thread = 8;
/// The bytes of shared memory that `sort` needs, aligned to 16.
[[nodiscard]] KVPOLICY_HD constexpr std::size_t sort_bytes(int threads) {
  return static_cast<std::size_t>(threads) * 48;
}

namespace detail {

struct plus_op {
  template <class T>
  KVPOLICY_HD constexpr T operator()(T a, T b) const {
    return a + b;
  }
};
struct max_op {
  template <class T>
  KVPOLICY_HD constexpr T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};
struct min_op {
  template <class T>
  KVPOLICY_HD constexpr T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};

}  // namespace detail

}  // namespace KVPOLICY_NAMESPACE
