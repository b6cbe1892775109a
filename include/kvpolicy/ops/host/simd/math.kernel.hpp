// Arithmetic and functions of floats, for each instruction set: see simd/operations.hpp.
//
// A sum of a product is `mul_add` where it may round once. Compilers fuse others, too: `in_register` keeps them from
// it.

/// Numbers that more than one operation uses.
[[gnu::always_inline]] inline floats load_once(float const* from) {
  floats made = load_floats(from);
  in_register(made.of);
  return made;
}
[[gnu::always_inline]] inline floats operator-(floats a, floats b) { return {a.of - b.of}; }
[[gnu::always_inline]] inline floats operator-(floats a) { return {-a.of}; }
[[gnu::always_inline]] inline floats operator*(floats a, floats b) { return {a.of * b.of}; }
[[gnu::always_inline]] inline floats operator/(floats a, floats b) { return {a.of / b.of}; }
[[gnu::always_inline]] inline four operator+(four a, four b) { return {a.of + b.of}; }
[[gnu::always_inline]] inline four larger(four a, four b) { return {a.of > b.of ? a.of : b.of}; }
/// The larger number; NaN propagates from either side.
[[gnu::always_inline]] inline floats highest(floats a, floats b) { return choose(b == b, larger(b, a), b); }
[[gnu::always_inline]] inline four highest(four a, four b) { return {((a.of >= b.of) | (a.of != a.of)) ? a.of : b.of}; }

/// Combines the quarters of a vector, one by one.
template <class F>
[[gnu::always_inline]] inline four fold_quarters(floats some, F const& f) {
  four made = quarter<0>(some);
  each<width / 4 - 1>([&](auto i) KVPOLICY_INLINED { made = f(made, quarter<i + 1>(some)); });
  return made;
}
[[gnu::always_inline]] inline float sum(four a) { return (a.of[0] + a.of[1]) + (a.of[2] + a.of[3]); }
[[gnu::always_inline]] inline float sum(floats some) {
  return sum(fold_quarters(some, [](auto a, auto b) KVPOLICY_INLINED { return a + b; }));
}
[[gnu::always_inline]] inline float highest(four a) {  // in vectors: a branch would often be mispredicted
  using numbers = typename vector_of<4>::floats;
  a = highest(a, four{numbers{a.of[1], a.of[0], a.of[3], a.of[2]}});
  return highest(a, four{numbers{a.of[2], a.of[3], a.of[0], a.of[1]}}).of[0];
}
[[gnu::always_inline]] inline float highest(floats some) {
  return highest(fold_quarters(some, [](auto a, auto b) KVPOLICY_INLINED { return highest(a, b); }));
}

/// e^x, of which `turns` is x / ln 2 as a whole number, to 2 units in the last place; 0 for x below -87. NaN stays NaN.
template <class Whole>
[[gnu::always_inline]] inline floats exp_by(floats x, Whole turns) {
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
[[gnu::always_inline]] inline floats exp_of_negative(floats x) {
  return exp_by(x, truncated(mul_add(x, repeated(1.44269504f), repeated(-0.5f))));
}
/// e^x for any x; above 88 it is e^88.
[[gnu::always_inline]] inline floats exp_of_any(floats x) {
  x = smaller(repeated(88), x);
  floats turns = x * repeated(1.44269504f);
  in_register(turns.of);
  return exp_by(x, truncated(turns + choose(turns < no_floats(), repeated(-0.5f), repeated(0.5f))));
}
/// The whole number nearest to x / ln 2, for `exp_by` where numbers are scaled by floats.
[[gnu::always_inline]] inline floats nearest_turns(floats x) {
  floats const rounds = repeated(12582912);  // 1.5 * 2^23: a number that is added to it becomes an integer
  return mul_add(x, repeated(1.44269504f), rounds) - rounds;
}

/// tanh x, to 3 units in the last place. NaN stays NaN, and an infinity becomes 1 or -1.
[[gnu::always_inline]] inline floats tanh_of(floats x) {
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
