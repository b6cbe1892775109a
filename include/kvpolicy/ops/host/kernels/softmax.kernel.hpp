// SPDX-License-Identifier: Apache-2.0
// The softmax of blocks of rows: kernels/softmax.hpp says what they promise.

constexpr float lowest_logit = -std::numeric_limits<float>::infinity();

template <int Rows>
constexpr int vectors_per_entry = Rows < width ? 1 : Rows / width;
template <int Rows>
constexpr int entries_per_vector = Rows < width ? width / Rows : 1;

/// The numbers of one vector of rows, for each entry of the vector. A `column` is such a vector of a block's rows.
template <int Rows>
KVPOLICY_OP floats load_rows(float const* rows, int column) {
  if constexpr (entries_per_vector<Rows> > 1) return splat_four(rows);
  return load(rows + column * width);
}
template <int Rows>
KVPOLICY_OP void store_rows(floats some, float* rows, int column) {
  if constexpr (entries_per_vector<Rows> > 1) {
    store_raw(quarter<0>(some).raw, rows);
  } else {
    store(some, rows + column * width);
  }
}
template <int Rows>
KVPOLICY_OP float* values_at(float* values, int e, int column) {
  return values + std::ptrdiff_t{e} * Rows + column * width;
}

/// For each number of a vector: its row sees the vector's entry if the limit is above the vector's first entry.
template <int Rows>
KVPOLICY_OP ints limits(block_view const& block, int column) {
  int limit[width];
  for (int i = 0; i < width; ++i) {
    int const visible = block.visible[column * width + i % Rows] - block.first;
    limit[i] = (visible < block.count ? visible : block.count) - i / Rows;
  }
  return load(limit);
}

/// e^x for x that is at most 0. Blocks of few rows truncate x / ln 2 on all instruction sets.
template <int Rows>
KVPOLICY_OP floats exp_of_shifted(floats x) {
  if constexpr (has_scaling && Rows > few_rows) return exp_by(x, nearest_exponent(x));
  return exp_of_negative(x);
}

/// The highest of a column's logits and of `before`. `All` says that its rows see every entry.
template <int Rows, bool All>
KVPOLICY_OP floats highest_of_column(block_view const& block, int column, ints limit, floats before) {
  constexpr int step = entries_per_vector<Rows>;
  floats most[4];  // one alone would make each maximum wait for the one before it
  unrolled<4>([&](auto i) KVPOLICY_INLINED { most[i] = before; });
  auto const take = [&](int e, auto& into) KVPOLICY_INLINED {
    floats value = load(values_at<Rows>(block.values, e, column));
    if constexpr (!All) value = choose(limit > splat(e), value, splat(lowest_logit));
    into = max_or_second(value, into);
  };
  int e = 0;
  for (; e + 4 * step <= block.count; e += 4 * step) {
    unrolled<4>([&](auto i) KVPOLICY_INLINED { take(e + i * step, most[i]); });
  }
  for (; e < block.count; e += step) take(e, most[0]);
  floats const now = max_or_second(max_or_second(most[0], most[1]), max_or_second(most[2], most[3]));
  if constexpr (step == 1) return now;
  return splat(fold_quarters(now, [](auto a, auto b) KVPOLICY_INLINED { return max_or_second(b, a); }));
}

/// Advances a column.
template <int Rows, bool All>
KVPOLICY_OP void advance_column(block_view const& block, int column, ints limit, float* row_max, float* sum) {
  constexpr int step = entries_per_vector<Rows>;
  floats const before = load_rows<Rows>(row_max, column);
  floats const now = highest_of_column<Rows, All>(block, column, limit, before);
  floats const zero =
      choose_or_zero(!(now == splat(lowest_logit)), now);  // 0: no entry seen yet, or only logits of -inf
  floats const shrink = exp_of_shifted<Rows>(before - zero);
  floats const so_far = load_rows<Rows>(sum, column);
  floats total = floats{};
  if constexpr (step == 1) {
    total = so_far * shrink;
    keep_rounded(total.raw);
  }
  for (int e = 0; e < block.count; e += step) {
    float* const at = values_at<Rows>(block.values, e, column);
    floats value = exp_of_shifted<Rows>(load(at) - zero);
    store(value, at);
    if constexpr (!All) value = choose_or_zero(limit > splat(e), value);
    total = total + value;
  }
  if constexpr (step > 1) {
    floats const more = splat(fold_quarters(total, [](auto a, auto b) KVPOLICY_INLINED { return a + b; }));
    total = mul_add(so_far, shrink, more);
  }
  store_rows<Rows>(now, row_max, column);
  store_rows<Rows>(now, block.scale, column);
  store_rows<Rows>(total, sum, column);
}

template <int Rows>
inline void advance(block_view const& block, float* row_max, float* sum) {
  for (int c = 0; c < vectors_per_entry<Rows>; ++c) {
    ints const limit = limits<Rows>(block, c);
    if (any(!(limit > splat((block.count - 1) / entries_per_vector<Rows> * entries_per_vector<Rows>)))) {
      advance_column<Rows, false>(block, c, limit, row_max, sum);
    } else {
      advance_column<Rows, true>(block, c, limit, row_max, sum);
    }
  }
}

/// A vector of few rows has the factors of several stretches.
template <int Rows>
inline void finalize(float* scale, int stretches, int const* visible, float const* row_max, float const* sum) {
  for (int c = 0; c < vectors_per_entry<Rows>; ++c) {
    float shares[static_cast<std::size_t>(Rows)];
    for (int r = 0; r < Rows; ++r) shares[r] = visible[r] > 0 ? 1.0f / sum[r] : 0.0f;
    floats const share = load_rows<Rows>(shares, c), last = load_rows<Rows>(row_max, c);
    for (int s = 0; s < stretches; s += entries_per_vector<Rows>) {
      float* const at = values_at<Rows>(scale, s, c);
      floats const part = load(at);
      store(choose_or_zero(!(part == splat(lowest_logit)), exp_of_negative(part - last)) * share, at);
    }
  }
}

inline void cap_logits(float* logits, int count, float cap) {
  floats const most = splat(cap);
  for (int i = 0; i < count; i += width) store(tanh_of(load(logits + i) / most) * most, logits + i);
}

template <int Rows>
inline void apply_lse(block_view const& block, float const* lse) {
  for (int c = 0; c < vectors_per_entry<Rows>; ++c) {
    floats const given = load_rows<Rows>(lse, c);
    for (int e = 0; e < block.count; e += entries_per_vector<Rows>) {
      float* const at = values_at<Rows>(block.values, e, c);
      floats const value = load(at) - given;
      if constexpr (has_scaling && Rows > few_rows) {
        floats const some = min_or_second(splat(88.0f), value);
        store(exp_by(some, nearest_exponent(some)), at);
      } else {
        store(exp_of_any(value), at);
      }
    }
    store_rows<Rows>(splat(1.0f), block.scale, c);
  }
}

/// Calls f(e, part) for the entries of each vector, where part(column) is the probabilities of a column's rows.
template <int Rows, class F>
KVPOLICY_OP void for_probabilities(block_view const& block, F const& f) {
  ints limit[vectors_per_entry<Rows>];
  floats scale[vectors_per_entry<Rows>];
  unrolled<vectors_per_entry<Rows>>([&](auto c) KVPOLICY_INLINED {
    limit[c] = limits<Rows>(block, c);
    scale[c] = load_rows<Rows>(block.scale, c);
  });
  for (int e = 0; e < block.count; e += entries_per_vector<Rows>) {
    f(e, [&](auto c) KVPOLICY_INLINED {
      return choose_or_zero(limit[c] > splat(e), load(values_at<Rows>(block.values, e, c)) * scale[c]);
    });
  }
}

template <int Rows, bool Maximum>
inline void reduce_by(block_view const& block, bool grow, float* out) {
  auto const both = [](auto a, auto b) KVPOLICY_INLINED {
    if constexpr (Maximum) return max_nan(a, b);
    if constexpr (!Maximum) return a + b;
  };
  for_probabilities<Rows>(block, [&](int e, auto const& part) KVPOLICY_INLINED {
    floats all = part(std::integral_constant<int, 0>{});
    unrolled<vectors_per_entry<Rows> - 1>(
        [&](auto c) KVPOLICY_INLINED { all = both(all, part(std::integral_constant<int, c + 1>{})); });
    unrolled<entries_per_vector<Rows>>([&](auto i) KVPOLICY_INLINED {
      if (e + i >= block.count) return;
      four rows = quarter<i>(all);
      if constexpr (entries_per_vector<Rows> == 1) rows = fold_quarters(all, both);
      float const made = Maximum ? reduce_max(rows) : reduce_add(rows);
      out[e + i] = grow ? both(out[e + i], made) : made;
    });
  });
}

template <int Rows>
inline void reduce(block_view const& block, bool maximum, bool grow, float* out) {
  maximum ? reduce_by<Rows, true>(block, grow, out) : reduce_by<Rows, false>(block, grow, out);
}

template <int Rows>
inline void gather_head(block_view const& block, bool maximum, bool grow, float* into) {
  for_probabilities<Rows>(block, [&](int e, auto const& part) KVPOLICY_INLINED {
    unrolled<vectors_per_entry<Rows>>([&](auto c) KVPOLICY_INLINED {
      float* const at = values_at<Rows>(into, e, c);
      floats const value = part(c);
      if (!grow) return store(value, at);
      floats const so_far = load(at);
      store(maximum ? max_nan(so_far, value) : so_far + value, at);
    });
  });
}

template <int Rows>
inline constexpr block_softmax softmax_of{advance<Rows>,   finalize<Rows>, cap_logits,
                                          apply_lse<Rows>, reduce<Rows>,   gather_head<Rows>};
inline constexpr softmax_kernels softmax{softmax_of<few_rows>, softmax_of<16>, softmax_of<most_rows>};
