// SPDX-License-Identifier: Apache-2.0
// Replaces `operator new`, so that it returns pages that host and GPU both see. Without a GPU it returns plain memory.
#include <cuda_runtime.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

/// A heap of blocks whose sizes are powers of two. The first 16 bytes of a block store its size. A freed block is
/// reused for the next request of its size.
class heap {
 public:
  void* take(std::size_t bytes) {
    if (cuda_is_asked) return plain(bytes);
    std::size_t const size = std::bit_ceil(bytes + head < smallest ? smallest : bytes + head);
    auto const power = static_cast<std::size_t>(std::countr_zero(size));
    while (busy_.test_and_set(std::memory_order_acquire)) {
    }
    std::byte* block = free_[power];
    if (block != nullptr) {
      free_[power] = *reinterpret_cast<std::byte**>(block + head);
    } else {
      block = fresh(size);
    }
    busy_.clear(std::memory_order_release);
    if (block == nullptr) return nullptr;
    *reinterpret_cast<std::size_t*>(block) = power;
    return block + head;
  }

  void give(void* what) {
    std::byte* const block = static_cast<std::byte*>(what) - head;
    std::size_t const power = *reinterpret_cast<std::size_t*>(block);
    if (power == is_plain) return std::free(block);
    while (busy_.test_and_set(std::memory_order_acquire)) {
    }
    *reinterpret_cast<std::byte**>(block + head) = free_[power];
    free_[power] = block;
    busy_.clear(std::memory_order_release);
  }

 private:
  static constexpr std::size_t head = 16;
  static constexpr std::size_t smallest = 32;
  static constexpr std::size_t slab = std::size_t{64} << 20;
  static constexpr std::size_t is_plain = 64;

  /// True while CUDA allocates pages: its libraries call `operator new` meanwhile, and get plain memory.
  static inline thread_local bool cuda_is_asked = false;
  static void* plain(std::size_t bytes) {
    auto* const block = static_cast<std::byte*>(std::malloc(bytes + head));
    if (block == nullptr) return nullptr;
    *reinterpret_cast<std::size_t*>(block) = is_plain;
    return block + head;
  }

  std::byte* fresh(std::size_t size) {
    if (size >= slab / 4) return pages(size);
    if (static_cast<std::size_t>(end_ - at_) < size) {
      at_ = pages(slab);
      end_ = at_ != nullptr ? at_ + slab : nullptr;
      if (at_ == nullptr) return nullptr;
    }
    std::byte* const block = at_;
    at_ += size;
    return block;
  }

  static std::byte* pages(std::size_t bytes) {
    void* got = nullptr;
    cuda_is_asked = true;
    bool const shared = cudaHostAlloc(&got, bytes, cudaHostAllocPortable) == cudaSuccess;
    cuda_is_asked = false;
    if (shared) return static_cast<std::byte*>(got);
    static_cast<void>(cudaGetLastError());
    return static_cast<std::byte*>(std::aligned_alloc(256, bytes));
  }

  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  std::byte* free_[64] = {};
  std::byte* at_ = nullptr;
  std::byte* end_ = nullptr;
};

constinit heap shared_heap;

}  // namespace

void* operator new(std::size_t bytes) {
  if (void* const got = shared_heap.take(bytes); got != nullptr) return got;
  throw std::bad_alloc();
}
void* operator new[](std::size_t bytes) { return ::operator new(bytes); }
void operator delete(void* what) noexcept {
  if (what != nullptr) shared_heap.give(what);
}
void operator delete(void* what, std::size_t) noexcept { ::operator delete(what); }
void operator delete[](void* what) noexcept { ::operator delete(what); }
void operator delete[](void* what, std::size_t) noexcept { ::operator delete(what); }
