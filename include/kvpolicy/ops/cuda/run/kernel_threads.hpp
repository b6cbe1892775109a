// SPDX-License-Identifier: Apache-2.0
// The threads that kernels are compiled for, and how many blocks of one must fit on a multiprocessor.
#pragma once

#include <kvpolicy/ops/cuda/run/block.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// The number of threads that collectives of a block are compiled for; 0: it has none.
template <class Threads>
inline constexpr int compiled_threads = 0;
template <int Count>
inline constexpr int compiled_threads<static_threads<Count>> = Count;

/// The most threads of a block.
template <class Threads>
inline constexpr int most_threads = 0;
template <int Count>
inline constexpr int most_threads<static_threads<Count>> = Count;
template <int Most>
inline constexpr int most_threads<threads_up_to<Most>> = Most;

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

}  // namespace detail

}  // namespace KVPOLICY_NAMESPACE
