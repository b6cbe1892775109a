// SPDX-License-Identifier: Apache-2.0
// Copies of a CUDA block to its shared memory that are under way while it computes.
#pragma once

#include <cstddef>
#include <kvpolicy/core/config.hpp>
#include <nv/target>

namespace KVPOLICY_NAMESPACE::detail {

/// The members of `thread_block` that copy asynchronously. Code for compute capability 8.0 and later does; earlier ones
/// copy at once. In host code the members do nothing.
class cuda_async_copies {
 public:
  KVPOLICY_HD void load_async([[maybe_unused]] std::byte* to, [[maybe_unused]] std::byte const* from) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    auto const place = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(from) : "memory");
#elif defined(__CUDA_ARCH__)
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4 const*>(from);
#endif
  }
  KVPOLICY_HD void commit_loads() const {
    NV_IF_TARGET(NV_PROVIDES_SM_80, (asm volatile("cp.async.commit_group;" :: : "memory");))
  }
  template <int Latest>
  KVPOLICY_HD void wait_loads() const {
    NV_IF_TARGET(NV_PROVIDES_SM_80, (asm volatile("cp.async.wait_group %0;" ::"n"(Latest) : "memory");))
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
