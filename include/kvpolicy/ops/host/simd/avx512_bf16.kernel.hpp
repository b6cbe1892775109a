// SPDX-License-Identifier: Apache-2.0
// Pairs of bf16 numbers with AVX-512, beside the operations of avx512.kernel.hpp: see simd/operations.hpp.

/// Adds the products of a pair's two numbers, which are rounded as the processor does it.
KVPOLICY_OP floats add_product_of_pairs(floats sums, floats a, floats b) {
  return {_mm512_dpbf16_ps(sums.raw, __builtin_bit_cast(__m512bh, a.raw), __builtin_bit_cast(__m512bh, b.raw))};
}
