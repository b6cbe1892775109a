// SPDX-License-Identifier: Apache-2.0
// Whether this process may use AMX, the matrix unit of Intel's processors.
#pragma once

#include <kvpolicy/core/config.hpp>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace KVPOLICY_NAMESPACE::detail {

/// True if the processor multiplies tiles of bf16, and Linux allows it to this process. The first call asks for the
/// permission, which is the process's from then on.
inline bool may_use_amx() {
#if defined(__x86_64__) && defined(__linux__)
  static bool const may = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned tiles_of_bf16 = 1u << 22 | 1u << 24;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & tiles_of_bf16) != tiles_of_bf16) return false;
    constexpr long ask_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr long tile_data = 18;
    return ::syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
  }();
  return may;
#else
  return false;
#endif
}

}  // namespace KVPOLICY_NAMESPACE::detail
