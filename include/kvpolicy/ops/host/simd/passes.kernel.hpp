// Loops, for each instruction set: see simd/operations.hpp.

/// Calls f(0), f(1), ..., f(N - 1), each with a constant.
template <int N, class F>
[[gnu::always_inline]] inline void each(F const& f) {
  [&]<int... I>(std::integer_sequence<int, I...>)
      KVPOLICY_INLINED { (f(std::integral_constant<int, I>{}), ...); }(std::make_integer_sequence<int, N>{});
}

/// Calls f(vector, e) for each whole vector of entries from e on, and f(number, e) for each entry behind them. The
/// first argument says by its type how many entries it is about.
template <class F>
[[gnu::always_inline]] inline void for_each_vector(int count, F const& f) {
  int e = 0;
  if constexpr (has_integers) {
    for (; e + width <= count; e += width) f(ints{}, e);
  }
  for (; e < count; ++e) f(one_int{}, e);
}
