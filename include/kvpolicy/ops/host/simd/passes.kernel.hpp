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

/// Calls f(vector, i) for each whole vector of floats from i = begin on, and f(number, i) for each float behind them.
/// The first argument says by its type how many floats it is about.
template <class F>
[[gnu::always_inline]] inline void for_each_float(int begin, int end, F const& f) {
  for (; begin + width <= end; begin += width) f(floats{}, begin);
  for (; begin < end; ++begin) f(0.0f, begin);
}

/// Elements as floats: a vector of them, or one.
template <codec Element>
[[gnu::always_inline]] inline floats load_elements(floats, std::byte const* from) {
  if constexpr (Element == codec::f16) return load_f16(from);
  if constexpr (Element == codec::bf16) return load_bf16(from);
  if constexpr (Element == codec::f32) return load_floats(from);
}
template <codec Element>
[[gnu::always_inline]] inline float load_elements(float, std::byte const* from) {
  return load(Element, from);
}
template <codec Element>
[[gnu::always_inline]] inline void store_elements(floats some, std::byte* to) {
  if constexpr (Element == codec::f16) store_f16(some, to);
  if constexpr (Element == codec::bf16) store_bf16(some, to);
  if constexpr (Element == codec::f32) store(some, reinterpret_cast<float*>(to));
}
template <codec Element>
[[gnu::always_inline]] inline void store_elements(float number, std::byte* to) {
  store(Element, number, to);
}
[[gnu::always_inline]] inline floats load_as(floats, float const* from) { return load_floats(from); }
[[gnu::always_inline]] inline float load_as(float, float const* from) { return *from; }
[[gnu::always_inline]] inline void store(float number, float* to) { *to = number; }
[[gnu::always_inline]] inline floats repeated_as(floats, float value) { return repeated(value); }
[[gnu::always_inline]] inline float repeated_as(float, float value) { return value; }
[[gnu::always_inline]] inline float highest(float a, float b) { return b != b ? b : b > a ? b : a; }

/// Keeps compilers from fusing this product with a sum.
template <class Vector>
[[gnu::always_inline]] inline void keep_rounded([[maybe_unused]] Vector& product) {
#if defined(__x86_64__)
  asm("" : "+v"(product));
#endif
}
/// a b, rounded.
[[gnu::always_inline]] inline floats product(floats a, floats b) {
  floats made{a.of * b.of};
  keep_rounded(made.of);
  return made;
}
[[gnu::always_inline]] inline float product(float a, float b) {
  float made = a * b;
  keep_rounded(made);
  return made;
}
