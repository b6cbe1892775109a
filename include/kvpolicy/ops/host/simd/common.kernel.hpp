// SPDX-License-Identifier: Apache-2.0
// What is written once for the vectors of every instruction set: loops, arithmetic, and functions of floats. See
// simd/operations.hpp.

// Loops

template <int N, class F>
KVPOLICY_OP void unrolled(F const& f) {
  [&]<int... I>(std::integer_sequence<int, I...>)
      KVPOLICY_INLINED { (f(std::integral_constant<int, I>{}), ...); }(std::make_integer_sequence<int, N>{});
}
template <bool Vectors = true, class F>
KVPOLICY_OP void for_each_vector(int begin, int end, F const& f) {
  if constexpr (Vectors) {
    for (; begin + width <= end; begin += width) f(vector_tag{}, begin);
  }
  for (; begin < end; ++begin) f(scalar_tag{}, begin);
}

// Operations that take a tag, and scalars beside vectors

constexpr int width_of(vector_tag) { return width; }
template <class Number>
KVPOLICY_OP auto load(vector_tag, Number const* from) {
  return load(from);
}
template <class Number>
KVPOLICY_OP auto splat(vector_tag, Number value) {
  return splat(value);
}
template <codec Element>
KVPOLICY_OP floats load_elements(vector_tag, std::byte const* from) {
  if constexpr (Element == codec::f16) return load_f16(from);
  if constexpr (Element == codec::bf16) return load_bf16(from);
  if constexpr (Element == codec::f32) return load(reinterpret_cast<float const*>(from));
}
template <codec Element>
KVPOLICY_OP float load_elements(scalar_tag, std::byte const* from) {
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
KVPOLICY_OP void store(float number, float* to) { *to = number; }
KVPOLICY_OP floats comparable(floats some) { return some; }
KVPOLICY_OP one_float comparable(float number) { return {number}; }

// Arithmetic

KVPOLICY_OP floats load_into_register(float const* from) {
  floats made = load(from);
  keep_in_register(made.raw);
  return made;
}
KVPOLICY_OP floats operator+(floats a, floats b) { return {a.raw + b.raw}; }
KVPOLICY_OP floats operator-(floats a, floats b) { return {a.raw - b.raw}; }
KVPOLICY_OP floats operator-(floats a) { return {-a.raw}; }
KVPOLICY_OP floats operator*(floats a, floats b) { return {a.raw * b.raw}; }
KVPOLICY_OP floats operator/(floats a, floats b) { return {a.raw / b.raw}; }
KVPOLICY_OP doubles operator+(doubles a, doubles b) { return {a.raw + b.raw}; }
KVPOLICY_OP four operator+(four a, four b) { return {a.raw + b.raw}; }
template <class Vector>
KVPOLICY_OP Vector add_square(Vector a, Vector b) {
  return mul_add(a, a, b);
}
template <class Vector>
KVPOLICY_OP void keep_rounded([[maybe_unused]] Vector& raw) {
#if defined(__x86_64__)
  asm("" : "+v"(raw));
#endif
}
KVPOLICY_OP floats mul_rounded(floats a, floats b) {
  floats made{a.raw * b.raw};
  keep_rounded(made.raw);
  return made;
}
KVPOLICY_OP float mul_rounded(float a, float b) {
  float made = a * b;
  keep_rounded(made);
  return made;
}

// Maxima, and reductions of a vector

KVPOLICY_OP four max_or_second(four a, four b) { return {a.raw > b.raw ? a.raw : b.raw}; }
KVPOLICY_OP four min_or_second(four a, four b) { return {a.raw < b.raw ? a.raw : b.raw}; }
KVPOLICY_OP float max_nan(float a, float b) { return a >= b || a != a ? a : b; }
KVPOLICY_OP floats max_nan(floats a, floats b) { return choose(b == b, max_or_second(b, a), b); }
KVPOLICY_OP four max_nan(four a, four b) { return {((a.raw >= b.raw) | (a.raw != a.raw)) ? a.raw : b.raw}; }

template <class F>
KVPOLICY_OP four fold_quarters(floats some, F const& f) {
  four made = quarter<0>(some);
  unrolled<width / 4 - 1>([&](auto i) KVPOLICY_INLINED { made = f(made, quarter<i + 1>(some)); });
  return made;
}
KVPOLICY_OP float reduce_add(four a) { return (a.raw[0] + a.raw[1]) + (a.raw[2] + a.raw[3]); }
KVPOLICY_OP float reduce_add(floats some) {
  return reduce_add(fold_quarters(some, [](auto a, auto b) KVPOLICY_INLINED { return a + b; }));
}
KVPOLICY_OP float reduce_max(four a) {  // in vectors: a branch would often be mispredicted
  using numbers = typename vector_of<4>::floats;
  a = max_nan(a, four{numbers{a.raw[1], a.raw[0], a.raw[3], a.raw[2]}});
  return max_nan(a, four{numbers{a.raw[2], a.raw[3], a.raw[0], a.raw[1]}}).raw[0];
}
KVPOLICY_OP float reduce_max(floats some) {
  return reduce_max(fold_quarters(some, [](auto a, auto b) KVPOLICY_INLINED { return max_nan(a, b); }));
}
KVPOLICY_OP float reduce_min(floats some) {
  four const a = fold_quarters(some, [](auto b, auto c) KVPOLICY_INLINED { return min_or_second(b, c); });
  float const low = a.raw[0] < a.raw[1] ? a.raw[0] : a.raw[1], high = a.raw[2] < a.raw[3] ? a.raw[2] : a.raw[3];
  return low < high ? low : high;
}

// Functions

template <class Whole>
KVPOLICY_OP floats exp_by(floats x, Whole exponent) {
  floats const n = to_floats(exponent);
  floats const f = mul_add(n, splat(2.12194440e-4f), mul_add(n, splat(-0.693359375f), x));  // ln 2 in two parts
  floats p = mul_add(f, splat(1.9875691500e-4f), splat(1.3981999507e-3f));
  p = mul_add(p, f, splat(8.3334519073e-3f));
  p = mul_add(p, f, splat(4.1665795894e-2f));
  p = mul_add(p, f, splat(1.6666665459e-1f));
  p = mul_add(p, f, splat(5.0000001201e-1f));
  p = mul_add(p * f, f, f) + splat(1.0f);
  return choose_or_zero(not_less(x, splat(-87.0f)), scale_by_power(p, exponent));
}
KVPOLICY_OP floats exp_of_negative(floats x) {
  return exp_by(x, truncate(mul_add(x, splat(1.44269504f), splat(-0.5f))));
}
KVPOLICY_OP floats exp_of_any(floats x) {
  x = min_or_second(splat(88.0f), x);
  floats exponent = x * splat(1.44269504f);
  keep_rounded(exponent.raw);
  return exp_by(x, truncate(exponent + choose(exponent < floats{}, splat(-0.5f), splat(0.5f))));
}
KVPOLICY_OP floats nearest_exponent(floats x) {
  floats const rounds = splat(12582912.0f);  // 1.5 * 2^23: a number that is added to it becomes an integer
  return mul_add(x, splat(1.44269504f), rounds) - rounds;
}
KVPOLICY_OP floats log_of(floats x) {
  floats exponent{};
  floats m = split_power(x, exponent);
  mask const is_high = splat(1.41421356f) < m;
  m = choose(is_high, m * splat(0.5f), m) - splat(1.0f);
  exponent = choose(is_high, exponent + splat(1.0f), exponent);
  floats p = mul_add(m, splat(7.0376836292e-2f), splat(-1.1514610310e-1f));  // Cephes
  p = mul_add(p, m, splat(1.1676998740e-1f));
  p = mul_add(p, m, splat(-1.2420140846e-1f));
  p = mul_add(p, m, splat(1.4249322787e-1f));
  p = mul_add(p, m, splat(-1.6668057665e-1f));
  p = mul_add(p, m, splat(2.0000714765e-1f));
  p = mul_add(p, m, splat(-2.4999993993e-1f));
  p = mul_add(p, m, splat(3.3333331174e-1f));
  floats const square = m * m;
  p = mul_add(exponent, splat(-2.12194440e-4f), p * m * square);
  p = mul_add(square, splat(-0.5f), p);
  return mul_add(exponent, splat(0.693359375f), m + p);
}
KVPOLICY_OP floats tanh_of(floats x) {
  mask const is_negative = x < floats{};
  floats const size = choose(is_negative, -x, x);
  floats const square = x * x;
  floats near = mul_add(square, splat(-5.70498872745e-3f), splat(2.06390887954e-2f));  // Cephes, |x| < 0.625
  near = mul_add(near, square, splat(-5.37397155531e-2f));
  near = mul_add(near, square, splat(1.33314422036e-1f));
  near = mul_add(near, square, splat(-3.33332819422e-1f));
  near = mul_add(near * square, x, x);
  floats const shrunk = exp_of_negative(size * splat(-2.0f));
  floats const far = (splat(1.0f) - shrunk) / (splat(1.0f) + shrunk);
  return choose(size < splat(0.625f), near, choose(is_negative, -far, far));
}
