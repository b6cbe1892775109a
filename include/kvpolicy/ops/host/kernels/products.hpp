// SPDX-License-Identifier: Apache-2.0
// `logits_of_isa`, the table of the kernels that multiply keys and rows, for each instruction set, AMX included.
#pragma once

#include <kvpolicy/ops/host/kernels/logits.hpp>
#if !defined(KVPOLICY_COMPILED_KERNELS)
#include <kvpolicy/ops/host/amx/sweeps.hpp>
#endif

namespace KVPOLICY_NAMESPACE::detail {

#if defined(KVPOLICY_COMPILED_KERNELS)
extern by_isa<logits_kernels> const logits_of_isa;
#elif defined(__x86_64__)
inline constexpr by_isa<logits_kernels> logits_of_isa{portable::logits, avx2::logits, avx512::logits,
                                                      avx512_bf16::logits_of_pairs, logits_of_amx};
#else
inline constexpr by_isa<logits_kernels> logits_of_isa{portable::logits, portable::logits, portable::logits};
#endif

}  // namespace KVPOLICY_NAMESPACE::detail
