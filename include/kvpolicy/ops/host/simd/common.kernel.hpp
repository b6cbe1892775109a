// What is written once for the vectors of every instruction set: loops, arithmetic, and functions of floats. See
// simd/operations.hpp.

/// Calls f(0), f(1), ..., f(N - 1), each with a constant.
template <int N, class F>
KVPOLICY_OP void each(F const& f) {
  [&]<int... I>(std::integer_sequence<int, I...>)
      KVPOLICY_INLINED { (f(std::integral_constant<int, I>{}), ...); }(std::make_integer_sequence<int, N>{});
}

/// Calls f(vector, e) for each whole vector of entries from e on, and f(number, e) for each entry behind them. The
/// first argument says by its type how many entries it is about.
template <class F>
KVPOLICY_OP void for_each_vector(int count, F const& f) {
  int e = 0;
  if constexpr (has_integers) {
    for (; e + width <= count; e += width) f(ints{}, e);
  }
  for (; e < count; ++e) f(one_int{}, e);
}

/// Calls f(vector, i) for each whole vector of floats from i = begin on, and f(number, i) for each float behind them.
/// The first argument says by its type how many floats it is about.
template <class F>
KVPOLICY_OP void for_each_float(int begin, int end, F const& f) {
  for (; begin + width <= end; begin += width) f(floats{}, begin);
  for (; begin < end; ++begin) f(0.0f, begin);
}

/// Elements as floats: a vector of them, or one.
template <codec Element>
KVPOLICY_OP floats load_elements(floats, std::byte const* from) {
  if constexpr (Element == codec::f16) return load_f16(from);
  if constexpr (Element == codec::bf16) return load_bf16(from);
  if constexpr (Element == codec::f32) return load_floats(from);
}
template <codec Element>
KVPOLICY_OP float load_elements(float, std::byte const* from) {
  return load(Element, from);
}
template <codec Element>
KVPOLICY_OP void store_elements(floats some, std::byte* to) {
  if constexpr (Element == codec::f16) store_f16(some, to);
  if constexpr (Element == codec::bf16) store_bf16(some, to);
  if constexpr (Element == codec::f32) store(some, reinterpret_cast<float*>(to));
}
template <codec Element>
KVPOLICY_OP void store_elements(float number, std::byte* to) {
  store(Element, number, to);
}
KVPOLICY_OP floats load_as(floats, float const* from) { return load_floats(from); }
KVPOLICY_OP float load_as(float, float const* from) { return *from; }
KVPOLICY_OP void store(float number, float* to) { *to = number; }
KVPOLICY_OP floats repeated_as(floats, float value) { return repeated(value); }
KVPOLICY_OP float repeated_as(float, float value) { return value; }
KVPOLICY_OP float highest(float a, float b) { return b != b ? b : b > a ? b : a; }

/// Keeps compilers from fusing this product with a sum.
template <class Vector>
KVPOLICY_OP void keep_rounded([[maybe_unused]] Vector& product) {
#if defined(__x86_64__)
  asm("" : "+v"(product));
#endif
}
/// a b, rounded.
KVPOLICY_OP floats product(floats a, floats b) {
  floats made{a.of * b.of};
  keep_rounded(made.of);
  return made;
}
KVPOLICY_OP float product(float a, float b) {
  float made = a * b;
  keep_rounded(made);
  return made;
}

/// Numbers that more than one operation uses.
KVPOLICY_OP floats load_once(float const* from) {
  floats made = load_floats(from);
  once(made.of);
  return made;
}
KVPOLICY_OP floats operator-(floats a, floats b) { return {a.of - b.of}; }
KVPOLICY_OP floats operator-(floats a) { return {-a.of}; }
KVPOLICY_OP floats operator*(floats a, floats b) { return {a.of * b.of}; }
KVPOLICY_OP floats operator/(floats a, floats b) { return {a.of / b.of}; }
KVPOLICY_OP four operator+(four a, four b) { return {a.of + b.of}; }
KVPOLICY_OP four larger(four a, four b) { return {a.of > b.of ? a.of : b.of}; }
/// The larger number; NaN propagates from either side.
KVPOLICY_OP floats highest(floats a, floats b) { return choose(b == b, larger(b, a), b); }
KVPOLICY_OP four highest(four a, four b) { return {((a.of >= b.of) | (a.of != a.of)) ? a.of : b.of}; }

/// Combines the quarters of a vector, one by one.
template <class F>
KVPOLICY_OP four fold_quarters(floats some, F const& f) {
  four made = quarter<0>(some);
  each<width / 4 - 1>([&](auto i) KVPOLICY_INLINED { made = f(made, quarter<i + 1>(some)); });
  return made;
}
KVPOLICY_OP float sum(four a) { return (a.of[0] + a.of[1]) + (a.of[2] + a.of[3]); }
KVPOLICY_OP float sum(floats some) {
  return sum(fold_quarters(some, [](auto a, auto b) KVPOLICY_INLINED { return a + b; }));
}
KVPOLICY_OP float highest(four a) {  // in vectors: a branch would often be mispredicted
  using numbers = typename vector_of<4>::floats;
  a = highest(a, four{numbers{a.of[1], a.of[0], a.of[3], a.of[2]}});
  return highest(a, four{numbers{a.of[2], a.of[3], a.of[0], a.of[1]}}).of[0];
}
KVPOLICY_OP float highest(floats some) {
  return highest(fold_quarters(some, [](auto a, auto b) KVPOLICY_INLINED { return highest(a, b); }));
}

/// e^x, of which `turns` is x / ln 2 as a whole number, to 2 units in the last place; 0 for x below -87. NaN stays NaN.
template <class Whole>
KVPOLICY_OP floats exp_by(floats x, Whole turns) {
  floats const n = as_floats(turns);
  floats const f = mul_add(n, repeated(2.12194440e-4f), mul_add(n, repeated(-0.693359375f), x));  // ln 2 in two parts
  floats p = mul_add(f, repeated(1.9875691500e-4f), repeated(1.3981999507e-3f));
  p = mul_add(p, f, repeated(8.3334519073e-3f));
  p = mul_add(p, f, repeated(4.1665795894e-2f));
  p = mul_add(p, f, repeated(1.6666665459e-1f));
  p = mul_add(p, f, repeated(5.0000001201e-1f));
  p = mul_add(p * f, f, f) + repeated(1);
  return only(not_below(x, repeated(-87)), scale_by_power(p, turns));
}
/// e^x for x that is at most 0 or NaN.
KVPOLICY_OP floats exp_of_negative(floats x) {
  return exp_by(x, truncated(mul_add(x, repeated(1.44269504f), repeated(-0.5f))));
}
/// e^x for any x; above 88 it is e^88.
KVPOLICY_OP floats exp_of_any(floats x) {
  x = smaller(repeated(88), x);
  floats turns = x * repeated(1.44269504f);
  once(turns.of);
  return exp_by(x, truncated(turns + choose(turns < no_floats(), repeated(-0.5f), repeated(0.5f))));
}
/// The whole number nearest to x / ln 2, for `exp_by` where numbers are scaled by floats.
KVPOLICY_OP floats nearest_turns(floats x) {
  floats const rounds = repeated(12582912);  // 1.5 * 2^23: a number that is added to it becomes an integer
  return mul_add(x, repeated(1.44269504f), rounds) - rounds;
}

/// tanh x, to 3 units in the last place. NaN stays NaN, and an infinity becomes 1 or -1.
KVPOLICY_OP floats tanh_of(floats x) {
  mask const is_negative = x < no_floats();
  floats const size = choose(is_negative, -x, x);
  floats const square = x * x;
  floats near = mul_add(square, repeated(-5.70498872745e-3f), repeated(2.06390887954e-2f));  // Cephes, |x| < 0.625
  near = mul_add(near, square, repeated(-5.37397155531e-2f));
  near = mul_add(near, square, repeated(1.33314422036e-1f));
  near = mul_add(near, square, repeated(-3.33332819422e-1f));
  near = mul_add(near * square, x, x);
  floats const shrunk = exp_of_negative(size * repeated(-2));
  floats const far = (repeated(1) - shrunk) / (repeated(1) + shrunk);
  return choose(size < repeated(0.625f), near, choose(is_negative, -far, far));
}
