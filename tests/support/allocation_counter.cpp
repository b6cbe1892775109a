// SPDX-License-Identifier: Apache-2.0
#include "support/allocation_counter.hpp"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

void* counted_allocation(std::size_t bytes, std::size_t alignment = 1) {
  ++kvpolicy_test::allocations;
  if (kvpolicy_test::until_failure >= 0 && kvpolicy_test::until_failure-- == 0) throw std::bad_alloc();
  bool const is_plain = alignment <= alignof(std::max_align_t);
  std::size_t const wanted = bytes != 0 ? bytes : 1;
  std::size_t const whole = (wanted + alignment - 1) / alignment * alignment;
  if (void* const made = is_plain ? std::malloc(wanted) : std::aligned_alloc(alignment, whole)) return made;
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
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted_allocation(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* from, std::align_val_t) noexcept { std::free(from); }
void operator delete(void* from, std::size_t, std::align_val_t) noexcept { std::free(from); }
void operator delete(void* from) noexcept { std::free(from); }
void operator delete[](void* from) noexcept { std::free(from); }
void operator delete(void* from, std::size_t) noexcept { std::free(from); }
void operator delete[](void* from, std::size_t) noexcept { std::free(from); }
// NOLINTEND
