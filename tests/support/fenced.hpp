// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <span>

#include "support/dice.hpp"

namespace kvpolicy_test {

/// Which end of an array is at a fence: a read or write of one byte beyond it ends the program.
enum class fence { behind, before };

/// `count` values between two pages that nobody may touch. They lie at one of the two; the room that is left towards
/// the other is filled with a pattern, which `is_whole` finds again. `seal` makes everything read-only.
template <class T>
class fenced {
 public:
  fenced(std::size_t count, fence at, T filler = T{}) : count_(count) {
    auto const page = as_size(::sysconf(_SC_PAGESIZE));
    inner_ = (count * sizeof(T) + page - 1) / page * page;
    size_ = inner_ + 2 * page;
    void* const made = ::mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) throw std::bad_alloc();
    first_ = static_cast<std::byte*>(made);
    inside_ = first_ + page;
    open();
    std::memset(inside_, pattern, inner_);
    data_ = at == fence::before ? inside_ : inside_ + (inner_ - count * sizeof(T));
    for (std::size_t i = 0; i < count; ++i) (*this)[i] = filler;
  }
  fenced(fenced const&) = delete;
  fenced& operator=(fenced const&) = delete;
  ~fenced() { ::munmap(first_, size_); }

  [[nodiscard]] T* data() { return reinterpret_cast<T*>(data_); }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] T& operator[](std::size_t i) { return data()[i]; }
  [[nodiscard]] std::span<T> all() { return {data(), count_}; }

  void seal() { protect(PROT_READ); }
  void open() { protect(PROT_READ | PROT_WRITE); }

  /// Nothing beside the values was written.
  [[nodiscard]] bool is_whole() const {
    for (std::byte const* at = inside_; at < inside_ + inner_; ++at) {
      bool const mine = at >= data_ && at < data_ + count_ * sizeof(T);
      if (!mine && *at != static_cast<std::byte>(pattern)) return false;
    }
    return true;
  }

 private:
  static constexpr int pattern = 0xC5;

  void protect(int how) {
    if (inner_ > 0 && ::mprotect(inside_, inner_, how) != 0) throw std::bad_alloc();
  }

  std::size_t count_;
  std::size_t inner_ = 0;
  std::size_t size_ = 0;
  std::byte* first_ = nullptr;
  std::byte* inside_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace kvpolicy_test
