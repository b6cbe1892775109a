// SPDX-License-Identifier: Apache-2.0
// The block of threads that kernels get on a CUDA device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <kvpolicy/ops/cuda/run/async.cuh>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/cuda/run/cluster.cuh>
#include <kvpolicy/ops/cuda/run/collectives.cuh>
#include <nv/target>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {

/// Satisfies `thread_block` by registers and intrinsics of CUDA, and by the collectives of CUB. `Threads` is their
/// number, or 0 for a block of a number known at run time, which has no collectives but those of warps. In host code
/// its members do nothing, so that kernels compile for both.
template <int Threads>
class cuda_block : public detail::cuda_cluster, public detail::cuda_async_copies {
 public:
  [[nodiscard]] KVPOLICY_HD int index() const {
    NV_IF_ELSE_TARGET(NV_IS_DEVICE, (return static_cast<int>(blockIdx.x);), (return 0;))
  }
  [[nodiscard]] KVPOLICY_HD int blocks() const {
    NV_IF_ELSE_TARGET(NV_IS_DEVICE, (return static_cast<int>(gridDim.x);), (return 1;))
  }
  [[nodiscard]] KVPOLICY_HD int thread() const {
    NV_IF_ELSE_TARGET(NV_IS_DEVICE, (return static_cast<int>(threadIdx.x);), (return 0;))
  }
  [[nodiscard]] KVPOLICY_HD int threads() const {
    NV_IF_ELSE_TARGET(NV_IS_DEVICE, (return Threads > 0 ? Threads : static_cast<int>(blockDim.x);), (return 1;))
  }
  [[nodiscard]] KVPOLICY_HD std::byte* shared() const {
#if defined(__CUDA_ARCH__)
    extern __shared__ uint4 kvpolicy_shared_memory[];
    return reinterpret_cast<std::byte*>(kvpolicy_shared_memory);
#else
    return nullptr;
#endif
  }

  KVPOLICY_HD void sync() const { NV_IF_TARGET(NV_IS_DEVICE, (__syncthreads();)) }
  KVPOLICY_HD void sync_warp() const { NV_IF_TARGET(NV_IS_DEVICE, (__syncwarp();)) }
  KVPOLICY_HD void fence() const { NV_IF_TARGET(NV_IS_DEVICE, (__threadfence();)) }
  [[nodiscard]] KVPOLICY_HD unsigned ballot([[maybe_unused]] bool vote) const {
    NV_IF_ELSE_TARGET(NV_IS_DEVICE, (return __ballot_sync(0xFFFFFFFFu, vote);), (return 0;))
  }
  /// The value that thread `from` of the warp passes. T has at most 16 bytes.
  template <class T>
  [[nodiscard]] KVPOLICY_HD T shuffle(T value, [[maybe_unused]] int from) const {
    NV_IF_ELSE_TARGET(NV_IS_DEVICE, (return cub::ShuffleIndex<32>(value, from & 31, 0xFFFFFFFFu);), (return value;))
  }

  template <int Width = 32, class T, class Combine>
  [[nodiscard]] KVPOLICY_HD T reduce_warp(T value, [[maybe_unused]] Combine const& combine) const {
#if defined(__CUDA_ARCH__)
    using collective = cub::WarpReduce<T, Width>;
    static_assert(sizeof(typename collective::TempStorage) <= 1, "kvpolicy: a power of two, which needs no storage");
    typename collective::TempStorage none;
    T const all = collective(none).Reduce(value, detail::known_to_cub<T>(combine));
    return shuffle(all, thread() % detail::warp_size / Width * Width);
#else
    return value;
#endif
  }
  template <int Width = 32, class T, std::size_t Count, class Combine>
  [[nodiscard]] KVPOLICY_HD T reduce_warp_batched(T const (&values)[Count],
                                                  [[maybe_unused]] Combine const& combine) const {
    static_assert(Count <= static_cast<std::size_t>(Width), "kvpolicy: every thread has one result at most");
    NV_IF_ELSE_TARGET(NV_IS_DEVICE, (return detail::reduce_batched<Width>(values, combine);), (return values[0];))
  }
  template <class T, class Combine>
  [[nodiscard]] KVPOLICY_HD T reduce([[maybe_unused]] collective_storage* storage, T value,
                                     [[maybe_unused]] Combine const& combine) const {
#if defined(__CUDA_ARCH__)
    using collective = cub::BlockReduce<T, compiled()>;
    struct memory {
      typename collective::TempStorage of;
      T all;
    };
    auto& mine = as<memory>(storage);
    T const all = collective(mine.of).Reduce(value, detail::known_to_cub<T>(combine));
    if (thread() == 0) mine.all = all;
    __syncthreads();
    return mine.all;
#else
    return value;
#endif
  }
  template <class T>
  [[nodiscard]] KVPOLICY_HD prefix_sum<T> exclusive_sum([[maybe_unused]] collective_storage* storage, T value) const {
#if defined(__CUDA_ARCH__)
    using collective = cub::BlockScan<T, compiled(), cub::BLOCK_SCAN_WARP_SCANS>;
    prefix_sum<T> sum;
    collective(as<typename collective::TempStorage>(storage)).ExclusiveSum(value, sum.before, sum.all);
    return sum;
#else
    return {value, value};
#endif
  }
  [[nodiscard]] KVPOLICY_HD prefix_sum<int> rank(collective_storage* storage, bool vote) const {
    return exclusive_sum(storage, vote ? 1 : 0);
  }
  KVPOLICY_HD void sort([[maybe_unused]] std::byte* storage, [[maybe_unused]] int* values,
                        [[maybe_unused]] int count) const {
#if defined(__CUDA_ARCH__)
    using collective = cub::BlockRadixSort<int, compiled(), sorted_of_a_thread>;
    static_assert(sizeof(typename collective::TempStorage) <= sort_bytes(compiled()));
    int mine[sorted_of_a_thread];
    for (int i = 0; i < sorted_of_a_thread; ++i) {
      int const at = thread() + i * compiled();
      mine[i] = at < count ? values[at] : 0x7FFFFFFF;
    }
    collective(*reinterpret_cast<typename collective::TempStorage*>(storage)).SortBlockedToStriped(mine);
    for (int i = 0; i < sorted_of_a_thread; ++i) {
      int const at = thread() + i * compiled();
      if (at < count) values[at] = mine[i];
    }
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
    NV_IF_ELSE_TARGET(NV_IS_DEVICE, (return atomicAdd(native(to), native_type<T>(value));), (return value;))
  }
  template <class T>
  KVPOLICY_HD T atomic_min([[maybe_unused]] T* to, T value) const {
    NV_IF_ELSE_TARGET(NV_IS_DEVICE, (return atomicMin(native(to), native_type<T>(value));), (return value;))
  }
  template <class T>
  KVPOLICY_HD T atomic_max([[maybe_unused]] T* to, T value) const {
    NV_IF_ELSE_TARGET(NV_IS_DEVICE, (return atomicMax(native(to), native_type<T>(value));), (return value;))
  }
  template <class T>
  KVPOLICY_HD T atomic_or([[maybe_unused]] T* to, T value) const {
    NV_IF_ELSE_TARGET(NV_IS_DEVICE, (return atomicOr(native(to), native_type<T>(value));), (return value;))
  }
  template <class T>
  KVPOLICY_HD T atomic_and([[maybe_unused]] T* to, T value) const {
    NV_IF_ELSE_TARGET(NV_IS_DEVICE, (return atomicAnd(native(to), native_type<T>(value));), (return value;))
  }

 private:
  /// CUDA's atomics take 64-bit integers as unsigned long long. Sums of signed integers have the same bits.
  template <class T>
  using native_type = std::conditional_t<sizeof(T) == 8, unsigned long long, T>;

  /// The number of threads, for collectives of the block.
  [[nodiscard]] KVPOLICY_HD static constexpr int compiled() {
    static_assert(Threads > 0, "kvpolicy: collectives of a block need a number of threads that is known here");
    return Threads;
  }
  template <class Memory>
  [[nodiscard]] KVPOLICY_HD static Memory& as(collective_storage* storage) {
    static_assert(sizeof(Memory) <= sizeof(collective_storage) && alignof(Memory) <= alignof(collective_storage));
    return *reinterpret_cast<Memory*>(storage);
  }

  template <class T>
  KVPOLICY_HD static native_type<T>* native(T* of) {
    static_assert(std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
    return reinterpret_cast<native_type<T>*>(of);
  }
};
static_assert(thread_block<cuda_block<512>>);

namespace detail {

/// How many blocks of a kernel a multiprocessor must have room for, if the kernel says so: it then gets no more
/// registers than that allows. This holds for compute capability 9.0. For others ptxas would spill registers.
template <class Kernel>
inline constexpr int least_blocks = 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
template <class Kernel>
  requires requires { Kernel::least_blocks; }
inline constexpr int least_blocks<Kernel> = Kernel::least_blocks;
template <class Kernel>
inline constexpr int least_blocks<unless_fault<Kernel>> = least_blocks<Kernel>;
#endif

/// Every kernel of the library is this function with another `Kernel` value. The architectures it is compiled for are
/// in its name, so that objects that were compiled for different ones can be linked together.
///
/// From compute capability 9.0 on, the next kernel of the stream may be placed on the device once all blocks of this
/// one run. It waits here until this one has ended and its writes are visible (`launch_target::overlaps`).
template <class Kernel, class Threads, int... Architectures>
__global__ void __launch_bounds__(Threads::most, least_blocks<Kernel>)
    run_kernel(Kernel const __grid_constant__ kernel) {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();  // before the first access of memory
#endif
  cuda_block<Threads::compiled> block;
  kernel(block);
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
