// SPDX-License-Identifier: Apache-2.0
// Pools of blocks of rows: kernels/row_pools.hpp says what they promise. Loads of rows are those of the softmax.

template <int Rows>
inline void settle(block_view const& block, int counted, bool grow, float* row_sum, float* sum) {
  int limit[width];
  for (int i = 0; i < width; ++i) limit[i] = counted - block.first - i / Rows;
  ints const within = load(limit);
  floats of_rows[vectors_per_entry<Rows>] = {};
  for_probabilities<Rows>(block, [&](int e, auto const& part) KVPOLICY_INLINED {
    floats all{};
    unrolled<vectors_per_entry<Rows>>([&](auto c) KVPOLICY_INLINED {
      floats const p = part(c);
      store(p, values_at<Rows>(block.values, e, c));
      of_rows[c] = of_rows[c] + choose_or_zero(within > splat(e), p);
      all = all + p;
    });
    put_sums<Rows>(all, block, e, grow, sum);
  });
  unrolled<vectors_per_entry<Rows>>([&](auto c) KVPOLICY_INLINED {
    floats all = of_rows[c];
    if constexpr (entries_per_vector<Rows> > 1) {
      all = splat(fold_quarters(all, [](auto a, auto b) KVPOLICY_INLINED { return a + b; }));
    }
    store_rows<Rows>(load_rows<Rows>(row_sum, c) + all, row_sum, c);
  });
}

/// Calls f(e, around) for each entry, where around(column) is that of a column's rows around it.
template <int Rows, bool Maxima, class F>
KVPOLICY_OP void for_pools(float const* values, int count, int pool_width, F const& f) {
  int const half = pool_width / 2;
  for (int e = 0; e < count; ++e) {
    int const first = e < half ? 0 : e - half;
    int const last = count - 1 - e < half ? count - 1 : e + half;
    f(e, [&](auto c) KVPOLICY_INLINED {
      float const* at = values + std::ptrdiff_t{first} * Rows;
      floats all = load_rows<Rows>(at, c);
      for (int i = first; i < last; ++i) {
        at += Rows;
        floats const next = load_rows<Rows>(at, c);
        all = Maxima ? max_nan(all, next) : all + next;
      }
      return all;
    });
  }
}

template <int Rows>
inline void add_maxima(float const* values, int count, int pool_width, float* row_sum) {
  floats of_rows[vectors_per_entry<Rows>] = {};
  for_pools<Rows, true>(values, count, pool_width, [&](int, auto const& around) KVPOLICY_INLINED {
    unrolled<vectors_per_entry<Rows>>([&](auto c) KVPOLICY_INLINED { of_rows[c] = of_rows[c] + around(c); });
  });
  unrolled<vectors_per_entry<Rows>>(
      [&](auto c) KVPOLICY_INLINED { store_rows<Rows>(load_rows<Rows>(row_sum, c) + of_rows[c], row_sum, c); });
}

template <int Rows, bool Maxima>
inline void highest_by(float const* values, int count, int pool_width, float const* factor, bool grow, float* out) {
  auto const higher = [](auto a, auto b) KVPOLICY_INLINED { return max_nan(a, b); };
  for_pools<Rows, Maxima>(values, count, pool_width, [&](int e, auto const& around) KVPOLICY_INLINED {
    floats high = around(std::integral_constant<int, 0>{}) * load_rows<Rows>(factor, 0);
    unrolled<vectors_per_entry<Rows> - 1>([&](auto c) KVPOLICY_INLINED {
      high = higher(high, around(std::integral_constant<int, c + 1>{}) * load_rows<Rows>(factor, c + 1));
    });
    four rows = quarter<0>(high);
    if constexpr (entries_per_vector<Rows> == 1) rows = fold_quarters(high, higher);
    float const made = reduce_max(rows);
    out[e] = grow ? higher(out[e], made) : made;
  });
}
template <int Rows>
inline void highest(float const* values, int count, int pool_width, bool maxima, float const* factor, bool grow,
                    float* out) {
  maxima ? highest_by<Rows, true>(values, count, pool_width, factor, grow, out)
         : highest_by<Rows, false>(values, count, pool_width, factor, grow, out);
}

template <int Rows>
inline constexpr block_pools pools_of{settle<Rows>, add_maxima<Rows>, highest<Rows>};
inline constexpr row_pools_kernels row_pools{pools_of<few_rows>, pools_of<16>, pools_of<most_rows>};
