// SPDX-License-Identifier: Apache-2.0
// Calls of the CUDA runtime: their errors, what a device can have, and launches.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <kvpolicy/ops/cuda/run/block.cuh>
#include <stdexcept>
#include <string>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// A call of the CUDA runtime failed. The text names the call and the error; `code()` is the error.
class cuda_error : public std::runtime_error {
 public:
  cuda_error(char const* call, cudaError_t code)
      : std::runtime_error(std::string(call) + ": " + cudaGetErrorName(code) + " (" + cudaGetErrorString(code) + ")"),
        code_(code) {}
  [[nodiscard]] cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

namespace detail {

inline void cuda_call(char const* call, cudaError_t code) {
  if (code != cudaSuccess) throw cuda_error(call, code);
}

[[nodiscard]] inline int device_attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  cuda_call("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&value, which, device));
  return value;
}

/// Lets a kernel have the most shared memory of the current device, since executors of other threads launch the same
/// kernel.
inline void allow_shared(void const* code, int most_shared) {
  cuda_call("cudaFuncSetAttribute",
            cudaFuncSetAttribute(code, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared));
}

/// True if kernels that are compiled for these architectures (800 for 8.0) run on a device as those of 9.0 or later do,
/// which have clusters and programmatic launches.
template <int... Architectures>
[[nodiscard]] constexpr bool compiled_for_hopper(int capability) {
  return ((Architectures >= 900 && Architectures <= 10 * capability) || ...);
}

struct empty_kernel {
  template <class Block>
  KVPOLICY_HD void operator()(Block&) const {}
};

/// The most blocks of a cluster, for blocks of any threads and any shared memory. A device whose multiprocessors are
/// shared out to several users may have fewer than 8. Of the architectures that kernels are compiled for, the runtime
/// says which one the device runs.
template <int... Architectures>
[[nodiscard]] int largest_cluster(int capability, int most_shared) {
  constexpr int portable = 8;
  if (!compiled_for_hopper<Architectures...>(capability)) return 1;
  auto* const code = reinterpret_cast<void const*>(&run_kernel<empty_kernel, static_threads<512>, Architectures...>);
  cudaFuncAttributes about{};
  cuda_call("cudaFuncGetAttributes", cudaFuncGetAttributes(&about, code));
  if (about.ptxVersion < 90) return 1;
  allow_shared(code, most_shared);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(portable);
  config.blockDim = dim3(static_threads<512>{});
  config.dynamicSmemBytes = static_cast<std::size_t>(most_shared);
  int most = 0;
  cuda_call("cudaOccupancyMaxPotentialClusterSize", cudaOccupancyMaxPotentialClusterSize(&most, code, &config));
  int blocks = 1;
  while (2 * blocks <= most && 2 * blocks <= portable) blocks *= 2;
  return blocks;
}

/// Where kernels are launched.
struct launch_target {
  cudaStream_t stream;
  int most_shared;                     ///< the most bytes of shared memory that a block can have
  bool overlaps;                       ///< a kernel may begin before the one before it has ended; see `run_kernel`
  std::vector<void const*>& opted_in;  ///< the kernels that this executor has let have the most shared memory
};

/// As `allow_shared`, which at every launch would cost some hundred nanoseconds.
inline void allow_shared_once(launch_target const& on, void const* code) {
  if (std::find(on.opted_in.begin(), on.opted_in.end(), code) != on.opted_in.end()) return;
  allow_shared(code, on.most_shared);
  on.opted_in.push_back(code);
}

/// Launches a kernel: in clusters if the grid has them.
template <int... Architectures, class Threads, class Kernel>
void launch_on(launch_target const& on, launch_shape<Threads> const& shape, Kernel const& kernel) {
  constexpr std::size_t without_opt_in = 48 * 1024;
  auto* const code = reinterpret_cast<void const*>(&run_kernel<Kernel, Threads, Architectures...>);
  if (shape.shared > without_opt_in) allow_shared_once(on, code);
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(int{shape.threads}));
  config.dynamicSmemBytes = shape.shared;
  config.stream = on.stream;
  config.attrs = attributes;
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
  }
  if (on.overlaps) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  void* arguments[] = {const_cast<Kernel*>(&kernel)};
  cuda_call("cudaLaunchKernelExC", cudaLaunchKernelExC(&config, code, arguments));
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
