// Selection and sorting by one block: the n-th highest of some numbers, and all of them ascending.
#pragma once

#include <kvpolicy/ops/cuda/block.hpp>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int digits_of_a_pass = 256;

[[nodiscard]] constexpr std::size_t digit_bytes() { return shared_arena::bytes_of_piece<int>(digits_of_a_pass); }

/// The n-th highest of `count` non-negative numbers, with n from 1 to count. Every thread gets it. A radix search with
/// one byte for each pass, from the highest down. `digits` is shared memory for digits_of_a_pass ints.
template <class Block>
[[nodiscard]] KVPOLICY_HD int nth_highest(Block& block, int const* values, int count, int n, int* digits) {
  unsigned found = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    unsigned const above = shift == 24 ? 0 : ~0u << (shift + 8);  // bits that are known
    block.sync();
    for (int i = block.thread(); i < digits_of_a_pass; i += block.threads()) digits[i] = 0;
    block.sync();
    for (int i = block.thread(); i < count; i += block.threads()) {
      auto const value = static_cast<unsigned>(values[i]);
      if ((value & above) == found) block.atomic_add(digits + (value >> shift & 255u), 1);
    }
    block.sync();
    int digit = digits_of_a_pass - 1;
    while (digit > 0 && digits[digit] < n) n -= digits[digit--];
    found |= static_cast<unsigned>(digit) << shift;
  }
  return static_cast<int>(found);
}

/// Sorts `count` numbers in shared or device memory. A bitonic sort whose first step of every round is mirrored: all
/// exchanges then have the same direction, so padding with infinity after the end would never move and is left out.
template <class Block>
KVPOLICY_HD void sort_ascending(Block& block, int* values, int count) {
  int rounds = 1;
  while (rounds < count) rounds *= 2;
  for (int size = 2; size <= rounds; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      int const partner = step == size / 2 ? size - 1 : step;
      block.sync();
      for (int i = block.thread(); i < count; i += block.threads()) {
        int const j = i ^ partner;
        if (j <= i || j >= count || values[i] <= values[j]) continue;
        int const higher = values[i];
        values[i] = values[j];
        values[j] = higher;
      }
    }
  }
  block.sync();
}

}  // namespace KVPOLICY_NAMESPACE::detail
