// SPDX-License-Identifier: Apache-2.0
// What a block of a CUDA device knows of its cluster.
#pragma once

#include <cuda_runtime.h>

#include <kvpolicy/core/config.hpp>
#include <nv/target>

namespace KVPOLICY_NAMESPACE::detail {

/// The members of `thread_block` that concern a cluster. Code for compute capability 9.0 and later has clusters; for
/// earlier ones, every block is a cluster of its own. In host code the members do nothing.
class cuda_cluster {
 public:
  [[nodiscard]] KVPOLICY_HD int cluster_rank() const {
    NV_IF_ELSE_TARGET(NV_PROVIDES_SM_90, (return static_cast<int>(__clusterRelativeBlockRank());), (return 0;))
  }
  [[nodiscard]] KVPOLICY_HD int cluster_blocks() const {
    NV_IF_ELSE_TARGET(NV_PROVIDES_SM_90, (return static_cast<int>(__clusterSizeInBlocks());), (return 1;))
  }
  /// The arrival releases, and the wait acquires.
  KVPOLICY_HD void sync_cluster() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
#elif defined(__CUDA_ARCH__)
    __syncthreads();
#endif
  }
  template <class T>
  [[nodiscard]] KVPOLICY_HD T* of_block([[maybe_unused]] int rank, T* mine) const {
    NV_IF_ELSE_TARGET(NV_PROVIDES_SM_90,
                      (return static_cast<T*>(__cluster_map_shared_rank(mine, static_cast<unsigned>(rank)));),
                      (return mine;))
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
