// Products of pairs of bf16: one operation multiplies and adds both.

struct of_pairs {
  static constexpr int bytes = 2;
  KVPOLICY_OP static floats add(floats sums, floats key, floats rows) { return add_product_of_pairs(sums, key, rows); }
};

template <int Rows>
constexpr product_kernels make_products_of_pairs() {
  product_kernels made = avx512::logits[Rows];  // what is not made of pairs
  if constexpr (Rows > few_rows) {
    made.set(product_kernel::rows_interleaved_bf16, columns_of<of_pairs, Rows>);
  } else {
    made.set(product_kernel::four_dims_bf16,
             multiply_four_dims<of_pairs, 1, 12, floats>);  // enough chains to hide their latency
    made.set(product_kernel::four_dims_bf16_parts, multiply_four_dims<of_pairs, 2, 8, floats>);
  }
  return made;
}
inline constexpr logits_kernels logits_of_pairs{make_products_of_pairs<few_rows>(), make_products_of_pairs<16>(),
                                                make_products_of_pairs<most_rows>()};
