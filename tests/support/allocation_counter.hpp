// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <new>

// allocation_counter.cpp replaces operator new of the whole program.

namespace kvpolicy_test {

/// Heap allocations since the program began, by any thread.
inline std::atomic<long> allocations{0};

/// Allocations left until one fails; negative: none fails.
inline std::atomic<long> until_failure{-1};

/// How often `work` allocates.
template <class Work>
long allocations_in(Work const& work) {
  long const before = allocations;
  work();
  return allocations - before;
}

/// Runs `work` with its n-th allocation failing; true if it got that far and threw.
template <class Work>
bool fails_at_allocation(long n, Work const& work) {
  until_failure = n;
  try {
    work();
  } catch (std::bad_alloc const&) {
    until_failure = -1;
    return true;
  }
  until_failure = -1;
  return false;
}

}  // namespace kvpolicy_test
