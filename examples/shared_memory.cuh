// SPDX-License-Identifier: Apache-2.0
// A CUDA executor that works in host memory, for examples and tests whose host code reads the results of kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <kvpolicy/ops/cuda/run/executor.cuh>
#include <new>

namespace examples {

/// Allocates by `operator new`, which shared_memory.cpp replaces: it returns pages that host and GPU both see.
class shared_memory final : public kvpolicy::device_memory {
 public:
  [[nodiscard]] void* allocate(std::size_t bytes, cudaStream_t) override { return ::operator new(bytes); }
  void deallocate(void* what, std::size_t, cudaStream_t stream) noexcept override {
    static_cast<void>(cudaStreamSynchronize(stream));
    ::operator delete(what);
  }
  [[nodiscard]] static shared_memory& all() {
    static shared_memory memory;
    return memory;
  }
};

/// A CUDA executor that waits for each kernel and each selection, so that the host may read the shared memory at any
/// time. All memory that kernels read must come from the heap, because they cannot read the host's stack. An engine
/// uses `kvpolicy::cuda_executor` with device memory instead, and does not wait.
class executor : public kvpolicy::cuda_executor {
 public:
  executor() : cuda_executor(nullptr, shared_memory::all()) {}

  template <class Threads, class Kernel>
  void launch(kvpolicy::launch_shape<Threads> const& shape, Kernel const& kernel) {
    cuda_executor::launch(shape, kernel);
    synchronize();
  }
  template <class Number>
  void select_numbers(std::int64_t count, Number const& number, kvpolicy::selected_numbers to, std::byte* storage) {
    cuda_executor::select_numbers(count, number, to, storage);
    synchronize();
  }
  void copy(std::byte* to, std::byte const* from, std::size_t bytes) {
    cuda_executor::copy(to, from, bytes);
    synchronize();
  }
};
inline constexpr char const* device_name = "cuda";

}  // namespace examples
