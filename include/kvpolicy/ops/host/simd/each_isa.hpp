// Compiles the kernels of a file for each instruction set: `detail::portable`, `detail::avx2` and `detail::avx512`.
//
//   #define KVPOLICY_KERNELS <kvpolicy/ops/host/kernels/norms.kernel.hpp>
//   #include <kvpolicy/ops/host/simd/each_isa.hpp>
//
// It has no guard, because each family of kernels includes it, and the file that it compiles has none, either. The
// targets are those of simd/operations.hpp.
#include <kvpolicy/ops/host/simd/operations.hpp>

namespace KVPOLICY_NAMESPACE::detail::portable {
#include KVPOLICY_KERNELS
}
#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
namespace KVPOLICY_NAMESPACE::detail::avx2 {
#include KVPOLICY_KERNELS
}
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(                                                                       \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,popcnt,bmi2,prfchw"))), \
    apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,popcnt,bmi2,prfchw")
#endif
namespace KVPOLICY_NAMESPACE::detail::avx512 {
#include KVPOLICY_KERNELS
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
#undef KVPOLICY_KERNELS
