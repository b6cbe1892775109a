// The block of threads that kernels get on a CUDA device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cub/warp/warp_scan.cuh>
#include <kvpolicy/ops/cuda/block.hpp>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {

/// Satisfies `thread_block` by registers and intrinsics of CUDA. In host code its members do nothing, so that kernels
/// compile for both.
class cuda_block {
 public:
  [[nodiscard]] KVPOLICY_HD int index() const {
#if defined(__CUDA_ARCH__)
    return static_cast<int>(blockIdx.x);
#else
    return 0;
#endif
  }
  [[nodiscard]] KVPOLICY_HD int blocks() const {
#if defined(__CUDA_ARCH__)
    return static_cast<int>(gridDim.x);
#else
    return 1;
#endif
  }
  [[nodiscard]] KVPOLICY_HD int thread() const {
#if defined(__CUDA_ARCH__)
    return static_cast<int>(threadIdx.x);
#else
    return 0;
#endif
  }
  [[nodiscard]] KVPOLICY_HD int threads() const {
#if defined(__CUDA_ARCH__)
    return static_cast<int>(blockDim.x);
#else
    return 1;
#endif
  }
  [[nodiscard]] KVPOLICY_HD std::byte* shared() const {
#if defined(__CUDA_ARCH__)
    extern __shared__ uint4 kvpolicy_shared_memory[];
    return reinterpret_cast<std::byte*>(kvpolicy_shared_memory);
#else
    return nullptr;
#endif
  }

  KVPOLICY_HD void sync() const {
#if defined(__CUDA_ARCH__)
    __syncthreads();
#endif
  }
  KVPOLICY_HD void sync_warp() const {
#if defined(__CUDA_ARCH__)
    __syncwarp();
#endif
  }
  KVPOLICY_HD void fence() const {
#if defined(__CUDA_ARCH__)
    __threadfence();
#endif
  }
  [[nodiscard]] KVPOLICY_HD unsigned ballot([[maybe_unused]] bool vote) const {
#if defined(__CUDA_ARCH__)
    return __ballot_sync(0xFFFFFFFFu, vote);
#else
    return 0;
#endif
  }
  /// The value that thread `from` of the warp passes. T has at most 16 bytes.
  template <class T>
  [[nodiscard]] KVPOLICY_HD T shuffle(T value, [[maybe_unused]] int from) const {
#if defined(__CUDA_ARCH__)
    return cub::ShuffleIndex<32>(value, from & 31, 0xFFFFFFFFu);
#else
    return value;
#endif
  }

  /// Adds the product of a warp's fragments to `sum`, on tensor cores. Their internal rounding of the sums is theirs.
  template <codec Element>
  KVPOLICY_HD void multiply_16x8x16([[maybe_unused]] fragment_16x16 const& a, [[maybe_unused]] fragment_16x8 const& b,
                                    [[maybe_unused]] fragment_of_floats& sum) const {
#if defined(__CUDA_ARCH__)
    if constexpr (Element == codec::bf16) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(sum.of[0]), "+f"(sum.of[1]), "+f"(sum.of[2]), "+f"(sum.of[3])
          : "r"(a.of[0]), "r"(a.of[1]), "r"(a.of[2]), "r"(a.of[3]), "r"(b.of[0]), "r"(b.of[1]));
    } else {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(sum.of[0]), "+f"(sum.of[1]), "+f"(sum.of[2]), "+f"(sum.of[3])
          : "r"(a.of[0]), "r"(a.of[1]), "r"(a.of[2]), "r"(a.of[3]), "r"(b.of[0]), "r"(b.of[1]));
    }
#endif
  }

  template <class T>
  KVPOLICY_HD T atomic_add([[maybe_unused]] T* to, T value) const {
#if defined(__CUDA_ARCH__)
    return static_cast<T>(atomicAdd(native(to), static_cast<native_type<T>>(value)));
#else
    return value;
#endif
  }
  template <class T>
  KVPOLICY_HD T atomic_min([[maybe_unused]] T* to, T value) const {
#if defined(__CUDA_ARCH__)
    return static_cast<T>(atomicMin(native(to), static_cast<native_type<T>>(value)));
#else
    return value;
#endif
  }
  template <class T>
  KVPOLICY_HD T atomic_max([[maybe_unused]] T* to, T value) const {
#if defined(__CUDA_ARCH__)
    return static_cast<T>(atomicMax(native(to), static_cast<native_type<T>>(value)));
#else
    return value;
#endif
  }
  template <class T>
  KVPOLICY_HD T atomic_or([[maybe_unused]] T* to, T value) const {
#if defined(__CUDA_ARCH__)
    return static_cast<T>(atomicOr(native(to), static_cast<native_type<T>>(value)));
#else
    return value;
#endif
  }
  template <class T>
  KVPOLICY_HD T atomic_and([[maybe_unused]] T* to, T value) const {
#if defined(__CUDA_ARCH__)
    return static_cast<T>(atomicAnd(native(to), static_cast<native_type<T>>(value)));
#else
    return value;
#endif
  }

 private:
  /// CUDA's atomics take 64-bit integers as unsigned long long. Sums of signed integers have the same bits.
  template <class T>
  using native_type = std::conditional_t<sizeof(T) == 8, unsigned long long, T>;

  template <class T>
  KVPOLICY_HD static native_type<T>* native(T* of) {
    static_assert(std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
    return reinterpret_cast<native_type<T>*>(of);
  }
};
static_assert(thread_block<cuda_block>);

namespace detail {

/// Every kernel of the library is this function with another `Kernel` value. The architectures it is compiled for are
/// in its name, so that objects that were compiled for different ones can be linked together.
template <class Kernel, int... Architectures>
__global__ void run_kernel(Kernel const __grid_constant__ kernel) {
  cuda_block block;
  kernel(block);
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
