// SPDX-License-Identifier: Apache-2.0
// Compiles the kernels of a family for each instruction set, and defines the family's table.
//
//   #define KVPOLICY_FAMILY norms
//   #include <kvpolicy/ops/host/simd/each_isa.hpp>
//
// kernels/norms.kernel.hpp defines an object `norms` of the type `norms_kernels`. It becomes `detail::portable::norms`,
// `detail::avx2::norms` and `detail::avx512::norms`, and the table of these is `norms_of_isa`, which is only declared
// where KVPOLICY_COMPILED_KERNELS is defined. The family `logits`, which has more regions, defines its table itself
// (KVPOLICY_OWN_TABLE; kernels/products.hpp). This file has no guard, because each family includes it, and kernels have
// none, either.
#include <kvpolicy/ops/host/simd/operations.hpp>
#if !defined(KVPOLICY_COMPILED_KERNELS)

namespace KVPOLICY_NAMESPACE::detail::portable {
#include KVPOLICY_KERNELS_OF(KVPOLICY_FAMILY)
}
#if defined(__x86_64__)

KVPOLICY_BEGIN_REGION(KVPOLICY_AVX2)
namespace KVPOLICY_NAMESPACE::detail::avx2 {
#include KVPOLICY_KERNELS_OF(KVPOLICY_FAMILY)
}
KVPOLICY_END_REGION

KVPOLICY_BEGIN_REGION(KVPOLICY_AVX512)
namespace KVPOLICY_NAMESPACE::detail::avx512 {
#include KVPOLICY_KERNELS_OF(KVPOLICY_FAMILY)
}
KVPOLICY_END_REGION

#endif
#endif
#if defined(KVPOLICY_OWN_TABLE)
#undef KVPOLICY_OWN_TABLE
#else
namespace KVPOLICY_NAMESPACE::detail {
KVPOLICY_TABLE(KVPOLICY_FAMILY);
}
#endif
#undef KVPOLICY_FAMILY
