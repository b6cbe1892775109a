// SPDX-License-Identifier: Apache-2.0
// The kernels that gpu_machine.cu times: each does one thing many times, and keeps it from being left out.
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstddef>

namespace {

namespace cg = cooperative_groups;

// --------------------------------------------------------------------------------------------------------------

__global__ void nothing() {}

/// Begins before the kernel before it has ended, as the library's kernels do.
__global__ void overlapping() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

/// The last block of the grid sets the ticket back.
__global__ void with_ticket(unsigned* ticket) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(ticket, 1u) + 1 == gridDim.x;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) *ticket = 0;
}

template <int Bytes>
struct arguments {
  unsigned char of[Bytes];
};
template <int Bytes>
__global__ void with_arguments(arguments<Bytes> given, unsigned* to) {
  if (given.of[threadIdx.x % Bytes] != 0) *to = 1;
}

__global__ void read_words(uint4 const* from, std::size_t words, unsigned* to) {
  unsigned folded = 0;
  std::size_t const step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step) {
    uint4 const one = from[i];
    folded ^= one.x ^ one.y ^ one.z ^ one.w;
  }
  if (folded == 0x9E3779B9u) *to = folded;
}

/// One thread follows places, each of which names the next.
__global__ void follow(unsigned const* next, int steps, unsigned* to) {
  unsigned at = 0;
  for (int i = 0; i < steps; ++i) at = next[at];
  *to = at;
}

__global__ void barriers(int count) {
  for (int i = 0; i < count; ++i) __syncthreads();
}

// Only devices of 9.0 and later have clusters, and only on these the two kernels are launched.
__global__ void cluster_barriers([[maybe_unused]] int count) {
#if __CUDA_ARCH__ >= 900
  for (int i = 0; i < count; ++i) cg::this_cluster().sync();
#endif
}

/// One thread of each block follows places in the shared memory of the next block of its cluster.
__global__ void follow_peer([[maybe_unused]] int steps, [[maybe_unused]] int* to) {
#if __CUDA_ARCH__ >= 900
  __shared__ int next[32];
  cg::cluster_group const all = cg::this_cluster();
  next[threadIdx.x] = static_cast<int>(threadIdx.x + 1) % 32;
  all.sync();
  int const* const there = all.map_shared_rank(next, (all.block_rank() + 1) % all.num_blocks());
  int at = 0;
  for (int i = 0; i < steps && threadIdx.x == 0; ++i) at = there[at];
  if (at < 0) *to = at;
  all.sync();
#endif
}

enum class work { fma, shuffle, reduce, exponential, atomic_spread, atomic_equal, atomic_two, product };

/// So many times eight independent operations of each warp.
template <work What>
__global__ void busy(int times, int* to) {
  __shared__ int bins[1024];
  bins[threadIdx.x] = 0;
  __syncthreads();
  int value[8];
  float number[8];
  for (int i = 0; i < 8; ++i) value[i] = static_cast<int>(threadIdx.x) + i, number[i] = static_cast<float>(i);
  float sum[8][4] = {};
  for (int n = 0; n < times; ++n) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (What == work::fma) number[i] = fmaf(number[i], number[i], 1.0f);
      if constexpr (What == work::shuffle) value[i] = __shfl_xor_sync(~0u, value[i], 1);
#if __CUDA_ARCH__ >= 800
      if constexpr (What == work::reduce) value[i] = __reduce_max_sync(~0u, value[i] + n);
      if constexpr (What == work::product) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%4,%5}, {%4,%5}, {%0,%1,%2,%3};"
            : "+f"(sum[i][0]), "+f"(sum[i][1]), "+f"(sum[i][2]), "+f"(sum[i][3])
            : "r"(value[0]), "r"(value[1]));
      }
#endif
      if constexpr (What == work::exponential) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(number[i]));
      if constexpr (What == work::atomic_spread) atomicAdd(&bins[threadIdx.x], 1);
      if constexpr (What == work::atomic_equal) atomicAdd(&bins[i], 1);
      if constexpr (What == work::atomic_two) atomicAdd(&bins[i + 8 * static_cast<int>(threadIdx.x % 2)], 1);
    }
  }
  __syncthreads();
  int folded = bins[threadIdx.x];
  for (int i = 0; i < 8; ++i) folded += value[i] + static_cast<int>(number[i] + sum[i][0] + sum[i][3]);
  if (folded == -123456789) *to = folded;
}

/// So many instructions of 16 bytes in a row, each run once.
template <int Instructions>
__global__ void straight(float given, int* to) {
  float value[8];
  for (int i = 0; i < 8; ++i) value[i] = static_cast<float>(threadIdx.x) + static_cast<float>(i);
#pragma unroll
  for (int i = 0; i < Instructions; ++i) value[i % 8] = fmaf(value[i % 8], value[i % 8], given);
  float folded = 0;
  for (float const each : value) folded += each;
  if (folded == -1) *to = 1;
}

}  // namespace
