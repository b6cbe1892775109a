// Compiles the kernels of a file for each instruction set: `detail::portable`, `detail::avx2` and `detail::avx512`.
//
//   #define KVPOLICY_KERNELS <kvpolicy/ops/host/kernels/norms.kernel.hpp>
//   #include <kvpolicy/ops/host/simd/each_isa.hpp>
//
// It has no guard, because each family of kernels includes it, and the file that it compiles has none, either.
#include <kvpolicy/ops/host/simd/operations.hpp>
#if !defined(KVPOLICY_COMPILED_KERNELS)

namespace KVPOLICY_NAMESPACE::detail::portable {
#include KVPOLICY_KERNELS
}
#if defined(__x86_64__)

KVPOLICY_BEGIN_REGION(KVPOLICY_AVX2)
namespace KVPOLICY_NAMESPACE::detail::avx2 {
#include KVPOLICY_KERNELS
}
KVPOLICY_END_REGION

KVPOLICY_BEGIN_REGION(KVPOLICY_AVX512)
namespace KVPOLICY_NAMESPACE::detail::avx512 {
#include KVPOLICY_KERNELS
}
KVPOLICY_END_REGION

#endif
#endif
#undef KVPOLICY_KERNELS
