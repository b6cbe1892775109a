// SPDX-License-Identifier: Apache-2.0
// Selections on a CUDA device, by cub::DeviceSelect.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cub/device/device_select.cuh>
#include <cuda/std/iterator>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/cuda/run/backend.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Iterates over number(0), number(1), ...; a number is computed where it is read.
template <class Number>
class computed_numbers {
 public:
  using value_type = int;
  using reference = int;
  using pointer = void;
  using difference_type = std::int64_t;
  using iterator_category = ::cuda::std::random_access_iterator_tag;

  KVPOLICY_HD explicit computed_numbers(Number const& number, unsigned at = 0) : number_(number), at_(at) {}
  [[nodiscard]] KVPOLICY_HD int operator*() const { return number_(at_); }
  [[nodiscard]] KVPOLICY_HD int operator[](std::int64_t i) const { return number_(at_ + static_cast<unsigned>(i)); }
  [[nodiscard]] KVPOLICY_HD computed_numbers operator+(std::int64_t i) const {
    return computed_numbers(number_, at_ + static_cast<unsigned>(i));
  }
  KVPOLICY_HD computed_numbers& operator+=(std::int64_t i) {
    at_ += static_cast<unsigned>(i);
    return *this;
  }

 private:
  Number number_;
  unsigned at_;
};

/// Iterates over to[*first], to[*first + 1], ..., which are written.
class numbers_from {
 public:
  using value_type = int;
  using reference = int&;
  using pointer = int*;
  using difference_type = std::int64_t;
  using iterator_category = ::cuda::std::random_access_iterator_tag;

  KVPOLICY_HD explicit numbers_from(selected_numbers to, std::int64_t at = 0) : to_(to), at_(at) {}
  [[nodiscard]] KVPOLICY_HD int& operator*() const { return to_.to[*to_.first + at_]; }
  [[nodiscard]] KVPOLICY_HD int& operator[](std::int64_t i) const { return to_.to[*to_.first + at_ + i]; }
  [[nodiscard]] KVPOLICY_HD numbers_from operator+(std::int64_t i) const { return numbers_from(to_, at_ + i); }
  KVPOLICY_HD numbers_from& operator+=(std::int64_t i) {
    at_ += i;
    return *this;
  }

 private:
  selected_numbers to_;
  std::int64_t at_;
};

struct is_number {
  [[nodiscard]] KVPOLICY_HD bool operator()(int number) const { return number >= 0; }
};

/// Launches a selection; see `kernel_executor`. `count` is below 2^31.
template <class Number>
[[nodiscard]] cudaError_t select_on(cudaStream_t stream, std::int64_t count, Number const& number, selected_numbers to,
                                    std::byte* storage) {
  constexpr std::size_t own = 256;  // for how many numbers there are, which nobody reads
  auto const select = [&](void* temp_storage, std::size_t& bytes) {
    return cub::DeviceSelect::If(temp_storage, bytes, computed_numbers<Number>(number), numbers_from(to),
                                 reinterpret_cast<std::int64_t*>(storage), count, is_number{}, stream);
  };
  std::size_t bytes = 0;
  if (cudaError_t const failed = select(nullptr, bytes); failed != cudaSuccess) return failed;
  expects(own + bytes <= selection_bytes(count), "select_numbers", "bytes", bytes,
          "cub::DeviceSelect of this version needs more scratch than is reserved");
  return select(storage + own, bytes);
}

}  // namespace KVPOLICY_NAMESPACE::detail
