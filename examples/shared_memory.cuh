// A GPU that works in the host's memory: for examples and tests whose host code reads what kernels write.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <kvpolicy/ops/cuda/executor.cuh>
#include <new>

namespace examples {

/// Memory from `operator new`, which shared_memory.cpp replaces: pages that host and GPU both see.
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

/// A CUDA executor that waits for each kernel, so that the host may read what is in shared memory at any time. What
/// kernels are shown must lie on the heap: they see no stack. An engine uses `kvpolicy::cuda_executor` and memory of
/// the device, and waits for nothing.
class executor : public kvpolicy::cuda_executor {
 public:
  executor() : cuda_executor(nullptr, shared_memory::all()) {}

  template <class Kernel>
  void launch(kvpolicy::launch_shape const& shape, Kernel const& kernel) {
    cuda_executor::launch(shape, kernel);
    synchronize();
  }
  void copy(std::byte* to, std::byte const* from, std::size_t bytes) {
    cuda_executor::copy(to, from, bytes);
    synchronize();
  }
};
inline constexpr char const* device_name = "cuda";

}  // namespace examples
