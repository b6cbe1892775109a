#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

// Replaces operator new of the whole program: include this in one source file only.

namespace kvpolicy_test {

/// Heap allocations since the program began, by any thread.
inline std::atomic<long> allocations{0};

/// Allocations left until one fails; negative: none fails.
inline std::atomic<long> until_failure{-1};

inline void* counted_allocation(std::size_t bytes) {
  ++allocations;
  if (until_failure >= 0 && until_failure-- == 0) throw std::bad_alloc();
  if (void* const made = std::malloc(bytes != 0 ? bytes : 1)) return made;
  throw std::bad_alloc();
}

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

// NOLINTBEGIN: what every allocation of the program goes through
void* operator new(std::size_t bytes) { return kvpolicy_test::counted_allocation(bytes); }
void* operator new[](std::size_t bytes) { return kvpolicy_test::counted_allocation(bytes); }
void operator delete(void* from) noexcept { std::free(from); }
void operator delete[](void* from) noexcept { std::free(from); }
void operator delete(void* from, std::size_t) noexcept { std::free(from); }
void operator delete[](void* from, std::size_t) noexcept { std::free(from); }
// NOLINTEND
