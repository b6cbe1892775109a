#include "support/allocation_counter.hpp"

#include <cstdlib>

namespace {

void* counted_allocation(std::size_t bytes) {
  ++kvpolicy_test::allocations;
  if (kvpolicy_test::until_failure >= 0 && kvpolicy_test::until_failure-- == 0) throw std::bad_alloc();
  if (void* const made = std::malloc(bytes != 0 ? bytes : 1)) return made;
  throw std::bad_alloc();
}

void* counted_or_null(std::size_t bytes) noexcept {
  try {
    return counted_allocation(bytes);
  } catch (std::bad_alloc const&) {
    return nullptr;
  }
}

}  // namespace

// NOLINTBEGIN: what every allocation of the program goes through
void* operator new(std::size_t bytes) { return counted_allocation(bytes); }
void* operator new[](std::size_t bytes) { return counted_allocation(bytes); }
void* operator new(std::size_t bytes, std::nothrow_t const&) noexcept { return counted_or_null(bytes); }
void* operator new[](std::size_t bytes, std::nothrow_t const&) noexcept { return counted_or_null(bytes); }
void operator delete(void* from) noexcept { std::free(from); }
void operator delete[](void* from) noexcept { std::free(from); }
void operator delete(void* from, std::size_t) noexcept { std::free(from); }
void operator delete[](void* from, std::size_t) noexcept { std::free(from); }
// NOLINTEND
