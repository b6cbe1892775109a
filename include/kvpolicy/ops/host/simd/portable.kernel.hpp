// Vectors of four numbers, for any compiler and processor: see simd/operations.hpp.

constexpr int width = 4;
constexpr bool has_integers = false;

struct floats {
  typename vector_of<width>::floats of;
};
struct doubles {
  typename vector_of<width / 2>::doubles of;
};
struct ints {
  typename vector_of<width>::ints of;
};

template <int Bytes>
using padded = zero_padded<Bytes>;

// Floats and doubles

[[gnu::always_inline]] inline floats no_floats() { return {typename vector_of<width>::floats{}}; }
[[gnu::always_inline]] inline doubles no_doubles() { return {typename vector_of<width / 2>::doubles{}}; }
[[gnu::always_inline]] inline floats operator+(floats a, floats b) { return {a.of + b.of}; }
[[gnu::always_inline]] inline doubles operator+(doubles a, doubles b) { return {a.of + b.of}; }
/// a * a + b, of which a * a is exact.
[[gnu::always_inline]] inline floats add_square(floats a, floats b) { return {a.of * a.of + b.of}; }
[[gnu::always_inline]] inline doubles add_square(doubles a, doubles b) { return {a.of * a.of + b.of}; }

/// Half a vector of floats, as doubles.
[[gnu::always_inline]] inline doubles load_widened(std::byte const* from) {
  typename vector_of<width / 2>::floats some;
  get(some, from);
  return {__builtin_convertvector(some, typename vector_of<width / 2>::doubles)};
}
[[gnu::always_inline]] inline doubles lower_widened(floats a) {
  return {typename vector_of<width / 2>::doubles{a.of[0], a.of[1]}};
}
[[gnu::always_inline]] inline doubles upper_widened(floats a) {
  return {typename vector_of<width / 2>::doubles{a.of[2], a.of[3]}};
}
[[gnu::always_inline]] inline doubles load_doubles(double const* from) {
  doubles made;
  get(made.of, from);
  return made;
}
/// The sum of all lanes: the upper half is added to the lower one until there is one number.
[[gnu::always_inline]] inline double add_lanes(doubles a) { return a.of[0] + a.of[1]; }
[[gnu::always_inline]] inline void store_roots(doubles a, float* to) {
  for (int i = 0; i < width / 2; ++i) to[i] = static_cast<float>(__builtin_sqrt(a.of[i]));
}

/// Numbers of f16 and bf16. Those of bf16 come as neighbours: even ones and odd ones of a vector of pairs.
[[gnu::always_inline]] inline floats load_f16(std::byte const* from) {
  using words = typename vector_of<width>::words;
  typename vector_of<width>::halves raw;
  get(raw, from);
  words const bits = __builtin_convertvector(raw, words);
  words const magnitude = (bits & 0x7FFFu) << 13;
  auto const scaled = __builtin_bit_cast(typename vector_of<width>::floats, magnitude) * 0x1p112f;
  words const not_finite = __builtin_bit_cast(words, (bits & 0x7C00u) == 0x7C00u) & (magnitude | 0x7F800000u);
  words const made = not_finite | __builtin_bit_cast(words, scaled) | (bits & 0x8000u) << 16;
  return {__builtin_bit_cast(typename vector_of<width>::floats, made)};
}
[[gnu::always_inline]] inline ints load_pairs(std::byte const* from) {
  ints made;
  get(made.of, from);
  return made;
}
[[gnu::always_inline]] inline floats even_bf16(ints pairs) {
  return {__builtin_bit_cast(typename vector_of<width>::floats, pairs.of << 16)};
}
[[gnu::always_inline]] inline floats odd_bf16(ints pairs) {
  return {__builtin_bit_cast(typename vector_of<width>::floats, pairs.of & -0x10000)};
}
/// The sums of neighbours: first those of `a`, then those of `b`.
[[gnu::always_inline]] inline floats add_neighbours(floats a, floats b) {
  typename vector_of<width>::floats const even{a.of[0], a.of[2], b.of[0], b.of[2]};
  typename vector_of<width>::floats const odd{a.of[1], a.of[3], b.of[1], b.of[3]};
  return {even + odd};
}
