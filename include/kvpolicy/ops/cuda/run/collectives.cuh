// SPDX-License-Identifier: Apache-2.0
// What the collectives of a CUDA block need of CUB: its names of operations, and many reductions of a warp at once.
#pragma once

#include <cstddef>
#include <cub/version.cuh>
#include <cuda/functional>
#include <cuda/std/functional>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <type_traits>
#if CUB_VERSION >= 300400
#include <cub/warp/warp_reduce_batched.cuh>
#endif

namespace KVPOLICY_NAMESPACE::detail {

/// The operation by the name that CUB knows, for which it has instructions. For floats, CUDA's maximum and minimum
/// treat NaN otherwise than ours.
template <class T, class Combine>
[[nodiscard]] KVPOLICY_HD auto known_to_cub(Combine const& combine) {
  constexpr bool is_known = std::is_integral_v<T>;
  if constexpr (is_known && std::is_same_v<Combine, plus_op>) {
    return ::cuda::std::plus<>{};
  } else if constexpr (is_known && std::is_same_v<Combine, max_op>) {
    return ::cuda::maximum<>{};
  } else if constexpr (is_known && std::is_same_v<Combine, min_op>) {
    return ::cuda::minimum<>{};
  } else {
    return combine;
  }
}

#if defined(__CUDA_ARCH__)
/// `thread_block::reduce_warp_batched`: cub::WarpReduceBatched, which came with CUB 3.4. For an older CUB the same
/// exchange stands here, in the same order, so that the bits do not depend on the version: each step passes half of the
/// remaining values to the thread that goes on with them.
template <int Width, class T, std::size_t Count, class Combine>
[[nodiscard]] __device__ T reduce_batched(T const (&values)[Count], Combine const& combine) {
#if CUB_VERSION >= 300400
  using collective = cub::WarpReduceBatched<T, static_cast<int>(Count), Width>;
  typename collective::TempStorage none;
  return collective(none).Reduce(values, known_to_cub<T>(combine));
#else
  constexpr int count = static_cast<int>(Count);
  T of[Count];
#pragma unroll
  for (int i = 0; i < count; ++i) of[i] = values[i];
#pragma unroll
  for (int stride = 1; stride < Width; stride *= 2) {
    bool const upper = (threadIdx.x & static_cast<unsigned>(stride)) != 0;
#pragma unroll
    for (int i = 0; i < count; i += 2 * stride) {
      int const other = i + stride < count ? i + stride : i;  // one value alone is exchanged with itself
      T const given = upper ? of[i] : of[other];
      T const kept = upper ? of[other] : of[i];
      of[i] = combine(__shfl_xor_sync(0xFFFFFFFFu, given, stride), kept);
    }
  }
  return of[0];
#endif
}
#endif

}  // namespace KVPOLICY_NAMESPACE::detail
