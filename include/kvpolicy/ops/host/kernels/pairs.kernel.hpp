// SPDX-License-Identifier: Apache-2.0
// Products of keys and rows in pairs of bf16: one instruction multiplies and adds both.

/// How pairs are multiplied. A number of a key has `bytes`.
struct pair_products {
  static constexpr int bytes = 2;
  KVPOLICY_OP static floats add(floats sums, floats key, floats rows) { return add_product_of_pairs(sums, key, rows); }
};

template <int Rows>
constexpr block_products make_products_of_pairs() {
  block_products made = avx512::logits[Rows];  // what is not made of pairs
  if constexpr (Rows > few_rows) {
    made.set(product_kernel::rows_interleaved_bf16, columns_of<pair_products, Rows>);
  } else {
    made.set(product_kernel::four_dims_bf16,
             multiply_four_dims<pair_products, 1, 12, floats>);  // enough chains to hide their latency
    made.set(product_kernel::four_dims_bf16_parts, multiply_four_dims<pair_products, 2, 8, floats>);
  }
  return made;
}
inline constexpr logits_kernels logits_of_pairs{make_products_of_pairs<few_rows>(), make_products_of_pairs<16>(),
                                                make_products_of_pairs<most_rows>()};
