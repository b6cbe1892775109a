// The choice of the products of an executor.
#pragma once

#include <kvpolicy/ops/host/amx/kernels.hpp>
#include <kvpolicy/ops/host/kernels/logits.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The products of blocks of `Rows` rows for an executor's instruction set.
template <int Rows>
[[nodiscard]] product_kernels const& products_for(isa simd_level) {
#if defined(__x86_64__)
  if constexpr (Rows > few_rows) {
    if (simd_level == isa::amx) return amx_blocks<Rows>::kernels;
  }
  if (simd_level >= isa::avx512_bf16) return avx512_bf16::products_of_pairs<Rows>;
#endif
  return of_level(simd_level, portable::products<Rows>, avx2::products<Rows>, avx512::products<Rows>);
}

}  // namespace KVPOLICY_NAMESPACE::detail
