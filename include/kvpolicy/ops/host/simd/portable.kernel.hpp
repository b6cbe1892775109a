// Vectors of four numbers, for any compiler and processor: see simd/operations.hpp.

constexpr int width = 4;
constexpr bool has_integers = false;
constexpr bool has_f16 = false;

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

KVPOLICY_OP floats no_floats() { return {typename vector_of<width>::floats{}}; }
KVPOLICY_OP doubles no_doubles() { return {typename vector_of<width / 2>::doubles{}}; }
KVPOLICY_OP floats operator+(floats a, floats b) { return {a.of + b.of}; }
KVPOLICY_OP doubles operator+(doubles a, doubles b) { return {a.of + b.of}; }
/// a * a + b, of which a * a is exact.
KVPOLICY_OP floats add_square(floats a, floats b) { return {a.of * a.of + b.of}; }
KVPOLICY_OP doubles add_square(doubles a, doubles b) { return {a.of * a.of + b.of}; }

/// Half a vector of floats, as doubles.
KVPOLICY_OP doubles load_widened(std::byte const* from) {
  typename vector_of<width / 2>::floats some;
  get(some, from);
  return {__builtin_convertvector(some, typename vector_of<width / 2>::doubles)};
}
KVPOLICY_OP doubles lower_widened(floats a) { return {typename vector_of<width / 2>::doubles{a.of[0], a.of[1]}}; }
KVPOLICY_OP doubles upper_widened(floats a) { return {typename vector_of<width / 2>::doubles{a.of[2], a.of[3]}}; }
KVPOLICY_OP doubles load_doubles(double const* from) {
  doubles made;
  get(made.of, from);
  return made;
}
/// The sum of all lanes: the upper half is added to the lower one until there is one number.
KVPOLICY_OP double add_lanes(doubles a) { return a.of[0] + a.of[1]; }
KVPOLICY_OP void store_roots(doubles a, float* to) {
  for (int i = 0; i < width / 2; ++i) to[i] = static_cast<float>(__builtin_sqrt(a.of[i]));
}

/// Numbers of f16 and bf16 come as neighbours: even ones and odd ones of a vector of pairs.
KVPOLICY_OP ints load_pairs(std::byte const* from) {
  ints made;
  get(made.of, from);
  return made;
}
KVPOLICY_OP floats even_bf16(ints pairs) {
  return {__builtin_bit_cast(typename vector_of<width>::floats, pairs.of << 16)};
}
KVPOLICY_OP floats odd_bf16(ints pairs) {
  return {__builtin_bit_cast(typename vector_of<width>::floats, pairs.of & -0x10000)};
}
/// The magnitudes of f16 numbers whose bits, without the sign, are where a float has its lower exponent and its
/// mantissa.
KVPOLICY_OP floats f16_magnitudes(typename vector_of<width>::ints bits) {
  using numbers = typename vector_of<width>::floats;
  auto const scaled = __builtin_bit_cast(typename vector_of<width>::ints, __builtin_bit_cast(numbers, bits) * 0x1p112f);
  auto const not_finite = (bits >= 0x7C00 << 13) & 0x7F800000;
  return {__builtin_bit_cast(numbers, scaled | not_finite)};
}
KVPOLICY_OP floats even_f16(ints pairs) { return f16_magnitudes((pairs.of << 13) & 0x7FFF << 13); }
KVPOLICY_OP floats odd_f16(ints pairs) { return f16_magnitudes((pairs.of >> 3) & 0x7FFF << 13); }

// Bits of 32 numbers less `less` and of 32 marks, which are 0 or 1: bit i is that of number i

KVPOLICY_OP std::uint32_t signs_of(int const* numbers, int less) {
  std::uint32_t signs = 0;
  for (int i = 0; i < 32; ++i)
    signs |= (static_cast<std::uint32_t>(numbers[i]) - static_cast<std::uint32_t>(less)) >> 31 << i;
  return signs;
}
/// A product gathers eight marks in its highest byte, where the lowest byte of a word is that of the first mark.
KVPOLICY_OP std::uint32_t marked_of(unsigned char const* marks) {
  std::uint32_t marked = 0;
  for (int i = 0; i < 32; i += 8) {
    std::uint64_t some = 0;
    if constexpr (std::endian::native == std::endian::little) {
      std::memcpy(&some, marks + i, sizeof some);
    } else {
      for (int k = 0; k < 8; ++k) some |= static_cast<std::uint64_t>(marks[i + k]) << 8 * k;
    }
    marked |= static_cast<std::uint32_t>(some * 0x0102040810204080u >> 56) << i;
  }
  return marked;
}

// Comparisons: masks have all bits of the numbers for which they are true

struct mask {
  typename vector_of<width>::ints of;
};
KVPOLICY_OP ints load_as(ints, int const* from) {
  ints made;
  get(made.of, from);
  once(made.of);
  return made;
}
KVPOLICY_OP ints same_as(ints, int value) { return {typename vector_of<width>::ints{} + value}; }
KVPOLICY_OP ints counting_as(ints, int first) { return {typename vector_of<width>::ints{0, 1, 2, 3} + first}; }
KVPOLICY_OP void store(ints some, int* to) { put(some.of, to); }
KVPOLICY_OP ints operator+(ints a, ints b) { return {a.of + b.of}; }
KVPOLICY_OP mask operator>(ints a, ints b) { return {a.of > b.of}; }
KVPOLICY_OP mask operator==(floats a, floats b) { return {a.of == b.of}; }
KVPOLICY_OP mask operator<(floats a, floats b) { return {a.of < b.of}; }
KVPOLICY_OP mask operator<=(floats a, floats b) { return {a.of <= b.of}; }
/// Whether a number of either is NaN.
KVPOLICY_OP mask unordered(floats a, floats b) { return {(a.of != a.of) | (b.of != b.of)}; }
KVPOLICY_OP mask operator&(mask a, mask b) { return {a.of & b.of}; }
KVPOLICY_OP mask operator|(mask a, mask b) { return {a.of | b.of}; }
KVPOLICY_OP mask operator!(mask a) { return {~a.of}; }
KVPOLICY_OP bool any(mask a) { return (a.of[0] | a.of[1] | a.of[2] | a.of[3]) != 0; }
/// Bit i is that of number i.
KVPOLICY_OP unsigned bits_of(mask a) {
  return static_cast<unsigned>((a.of[0] & 1) | (a.of[1] & 2) | (a.of[2] & 4) | (a.of[3] & 8));
}
KVPOLICY_OP ints choose(mask which, ints yes, ints no) { return {which.of ? yes.of : no.of}; }
KVPOLICY_OP floats choose(mask which, floats yes, floats no) { return {which.of ? yes.of : no.of}; }
KVPOLICY_OP float least_of(floats a) {
  float const low = a.of[0] < a.of[1] ? a.of[0] : a.of[1], high = a.of[2] < a.of[3] ? a.of[2] : a.of[3];
  return low < high ? low : high;
}

// Logits and softmax

/// Four numbers, whatever the width: the rows of a small block.
struct four {
  typename vector_of<4>::floats of;
};
/// True if `scale_by_power` takes whole numbers as floats: then `nearest` rounds in two operations.
constexpr bool has_scaling = false;

KVPOLICY_OP floats load_floats(void const* from) {
  floats made;
  get(made.of, from);
  return made;
}
KVPOLICY_OP floats load_bf16(std::byte const* from) {
  using words = typename vector_of<width>::words;
  typename vector_of<width>::halves some;
  get(some, from);
  return {__builtin_bit_cast(typename vector_of<width>::floats, __builtin_convertvector(some, words) << 16)};
}
KVPOLICY_OP void store(floats some, float* to) { put(some.of, to); }
KVPOLICY_OP floats repeated(float value) { return {typename vector_of<width>::floats{value, value, value, value}}; }
/// Four numbers, again and again.
KVPOLICY_OP floats repeated(four some) { return {some.of}; }
KVPOLICY_OP floats repeated_four(void const* from) { return load_floats(from); }
/// Numbers 4 I to 4 I + 3 of a vector.
template <int I>
KVPOLICY_OP four quarter(floats some) {
  return four{some.of};  // nvcc 13 loses the braces of a template without the type
}
/// a b + c: one operation, which rounds once, where there is one.
KVPOLICY_OP floats mul_add(floats a, floats b, floats c) { return {a.of * b.of + c.of}; }
KVPOLICY_OP float mul_add(float a, float b, float c) { return a * b + c; }
/// b if one of them is NaN, and where both are zero.
KVPOLICY_OP floats larger(floats a, floats b) { return {a.of > b.of ? a.of : b.of}; }
KVPOLICY_OP floats smaller(floats a, floats b) { return {a.of < b.of ? a.of : b.of}; }

/// True also of NaN.
KVPOLICY_OP mask not_below(floats a, floats b) { return {~(a.of < b.of)}; }
/// Zero elsewhere.
KVPOLICY_OP floats only(mask which, floats some) {
  using bits = typename vector_of<width>::ints;
  return {__builtin_bit_cast(typename vector_of<width>::floats, __builtin_bit_cast(bits, some.of) & which.of)};
}

/// The whole numbers below, towards zero, and what they are as floats; p 2^n.
KVPOLICY_OP ints truncated(floats a) { return {__builtin_convertvector(a.of, typename vector_of<width>::ints)}; }
KVPOLICY_OP floats as_floats(ints a) { return {__builtin_convertvector(a.of, typename vector_of<width>::floats)}; }
/// Unsigned: entries that a row does not see may be far above its maximum, and their results are dropped.
KVPOLICY_OP floats scale_by_power(floats p, ints n) {
  using words = typename vector_of<width>::words;
  words const bits = __builtin_bit_cast(words, p.of) + (__builtin_bit_cast(words, n.of) << 23);
  return {__builtin_bit_cast(typename vector_of<width>::floats, bits)};
}
/// The sum of each of four vectors, added in an order of the instruction set's own.
KVPOLICY_OP four sums_of_four(floats a, floats b, floats c, floats d) {
  using numbers = typename vector_of<4>::floats;
  return {numbers{(a.of[0] + a.of[1]) + (a.of[2] + a.of[3]), (b.of[0] + b.of[1]) + (b.of[2] + b.of[3]),
                  (c.of[0] + c.of[1]) + (c.of[2] + c.of[3]), (d.of[0] + d.of[1]) + (d.of[2] + d.of[3])}};
}

// Selections and pools

KVPOLICY_OP floats operator/(floats a, float by) { return {a.of / by}; }

// Rows of keys, of weights and of new tokens

/// Vector i gets number i of `width` rows. Row r begins at row(r).
template <class Row>
KVPOLICY_OP void load_columns(Row const& row, floats (&column)[4]) {
  floats const a = load_floats(row(0)), b = load_floats(row(1)), c = load_floats(row(2)), d = load_floats(row(3));
  for (int i = 0; i < 4; ++i) column[i].of = typename vector_of<width>::floats{a.of[i], b.of[i], c.of[i], d.of[i]};
}
KVPOLICY_OP ints raw_bits(floats a) { return {__builtin_bit_cast(typename vector_of<width>::ints, a.of)}; }
KVPOLICY_OP floats load_f16(std::byte const* from) {
  using ints_of = typename vector_of<width>::ints;
  typename vector_of<width>::halves some;
  get(some, from);
  ints_of const wide = __builtin_convertvector(some, ints_of);
  floats const size = f16_magnitudes((wide & 0x7FFF) << 13);
  return {__builtin_bit_cast(typename vector_of<width>::floats, raw_bits(size).of | (wide >> 15 << 31))};
}
/// Rounded to nearest even; a NaN stays one.
KVPOLICY_OP void store_f16(floats a, std::byte* to) {
  for (int i = 0; i < width; ++i) store(codec::f16, a.of[i], to + 2 * i);
}
KVPOLICY_OP void store_bf16(floats a, std::byte* to) {
  for (int i = 0; i < width; ++i) store(codec::bf16, a.of[i], to + 2 * i);
}
