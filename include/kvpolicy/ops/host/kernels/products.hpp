// The choice of the products of an executor.
#pragma once

#include <kvpolicy/ops/host/kernels/logits.hpp>
#if !defined(KVPOLICY_COMPILED_KERNELS)
#include <kvpolicy/ops/host/amx/kernels.hpp>
#endif

namespace KVPOLICY_NAMESPACE::detail {

#if defined(KVPOLICY_COMPILED_KERNELS)
template <int Rows>
extern by_isa<product_kernels> const products_of_isa;
extern template by_isa<product_kernels> const products_of_isa<few_rows>;
extern template by_isa<product_kernels> const products_of_isa<16>;
extern template by_isa<product_kernels> const products_of_isa<most_rows>;
#elif defined(__x86_64__)
template <int Rows>
inline constexpr product_kernels products_of_amx = amx_blocks<Rows>::kernels;
template <>
inline constexpr product_kernels products_of_amx<few_rows> = avx512_bf16::products_of_pairs<few_rows>;

/// The products of blocks of `Rows` rows.
template <int Rows>
inline constexpr by_isa<product_kernels> products_of_isa{portable::products<Rows>, avx2::products<Rows>,
                                                         avx512::products<Rows>, avx512_bf16::products_of_pairs<Rows>,
                                                         products_of_amx<Rows>};
#else
template <int Rows>
inline constexpr by_isa<product_kernels> products_of_isa{portable::products<Rows>, portable::products<Rows>,
                                                         portable::products<Rows>};
#endif

}  // namespace KVPOLICY_NAMESPACE::detail
