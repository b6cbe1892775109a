// SPDX-License-Identifier: Apache-2.0
// Sums over the rows of blocks: kernels/row_sums.hpp says what they promise.

/// Writes a sum over rows for each entry of a vector, or adds it.
template <int Rows>
KVPOLICY_OP void put_sums(floats some, block_view const& block, int e, bool grow, float* out) {
  unrolled<entries_per_vector<Rows>>([&](auto i) KVPOLICY_INLINED {
    if (e + i >= block.count) return;
    float const made = entries_per_vector<Rows> == 1 ? reduce_add(some) : reduce_add(quarter<i>(some));
    out[e + i] = grow ? out[e + i] + made : made;
  });
}

template <int Rows>
inline void moments(block_view const& block, bool grow, float* sum, float* squares, float* entropy) {
  for_probabilities<Rows>(block, [&](int e, auto const& part) KVPOLICY_INLINED {
    floats all{}, square{}, information{};
    unrolled<vectors_per_entry<Rows>>([&](auto c) KVPOLICY_INLINED {
      floats const p = part(c);
      all = all + p;
      square = add_square(p, square);
      information = mul_add(-p, log_of(p + splat(1e-10f)), information);
    });
    put_sums<Rows>(all, block, e, grow, sum);
    put_sums<Rows>(square, block, e, grow, squares);
    put_sums<Rows>(information, block, e, true, entropy);
  });
}

/// Blocks whose rows are all used add them in vectors, others one by one.
template <int Rows, bool Squares>
inline void add_norms_by(float const* values, int count, int rows, float* out) {
  for (int e = 0; e < count; ++e, values += Rows) {
    if (Rows >= width && rows == Rows) {
      floats sum = floats{};
      unrolled<vectors_per_entry<Rows>>([&](auto c) KVPOLICY_INLINED {
        floats const some = load(values + c * width);
        sum = sum + (Squares ? some * some : max_nan(some, -some));
      });
      out[e] += reduce_add(sum);
    } else {
      float sum = 0;
      for (int r = 0; r < rows; ++r) sum += Squares ? values[r] * values[r] : values[r] < 0 ? -values[r] : values[r];
      out[e] += sum;
    }
  }
}
template <int Rows>
inline void add_norms(float const* values, int count, int rows, bool squares, float* out) {
  squares ? add_norms_by<Rows, true>(values, count, rows, out) : add_norms_by<Rows, false>(values, count, rows, out);
}

template <int Rows>
inline constexpr block_row_sums row_sums_of{moments<Rows>, add_norms<Rows>};
inline constexpr row_sums_kernels row_sums{row_sums_of<few_rows>, row_sums_of<16>, row_sums_of<most_rows>};
