// A loop over constants, for each instruction set: see simd/operations.hpp.

/// Calls f(0), f(1), ..., f(N - 1), each with a constant.
template <int N, class F>
[[gnu::always_inline]] inline void each(F const& f) {
  [&]<int... I>(std::integer_sequence<int, I...>)
      KVPOLICY_INLINED { (f(std::integral_constant<int, I>{}), ...); }(std::make_integer_sequence<int, N>{});
}
