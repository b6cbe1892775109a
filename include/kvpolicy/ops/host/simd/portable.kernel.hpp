// SPDX-License-Identifier: Apache-2.0
// Vectors of four numbers, for any compiler and processor: see simd/operations.hpp.

constexpr int width = 4;
constexpr bool has_integers = false;
constexpr bool has_f16 = false;
constexpr bool has_scaling = false;

using float_vector = typename vector_of<width>::floats;
using double_vector = typename vector_of<width / 2>::doubles;
using int_vector = typename vector_of<width>::ints;
using word_vector = typename vector_of<width>::words;
using half_vector = typename vector_of<width>::halves;

struct floats {
  float_vector raw;
};
struct doubles {
  double_vector raw;
};
struct ints {
  int_vector raw;
};
struct mask {  // all bits of a number are set, or none
  int_vector raw;
};
struct four {
  typename vector_of<4>::floats raw;
};

template <int Bytes>
using padded = zero_padded<Bytes>;

// Loads and stores

template <class Vector>
KVPOLICY_OP Vector loaded(void const* from) {
  Vector made;
  load_raw(made, from);
  return made;
}
KVPOLICY_OP floats load(float const* from) { return {loaded<float_vector>(from)}; }
KVPOLICY_OP doubles load(double const* from) { return {loaded<double_vector>(from)}; }
KVPOLICY_OP ints load(int const* from) {
  ints made{loaded<int_vector>(from)};
  keep_in_register(made.raw);
  return made;
}
KVPOLICY_OP ints load_words(std::byte const* from) { return {loaded<int_vector>(from)}; }
KVPOLICY_OP floats splat_four(void const* from) { return {loaded<float_vector>(from)}; }
KVPOLICY_OP doubles load_widened(std::byte const* from) {
  return {__builtin_convertvector(loaded<typename vector_of<width / 2>::floats>(from), double_vector)};
}
KVPOLICY_OP floats load_bf16(std::byte const* from) {
  return {__builtin_bit_cast(float_vector, __builtin_convertvector(loaded<half_vector>(from), word_vector) << 16)};
}
/// The magnitudes of f16 numbers whose bits, without the sign, are where a float has its lower exponent and its
/// mantissa.
KVPOLICY_OP floats f16_magnitudes(int_vector bits) {
  auto const scaled = __builtin_bit_cast(int_vector, __builtin_bit_cast(float_vector, bits) * 0x1p112f);
  auto const not_finite = (bits >= 0x7C00 << 13) & 0x7F800000;
  return {__builtin_bit_cast(float_vector, scaled | not_finite)};
}
KVPOLICY_OP floats load_f16(std::byte const* from) {
  int_vector const wide = __builtin_convertvector(loaded<half_vector>(from), int_vector);
  floats const size = f16_magnitudes((wide & 0x7FFF) << 13);
  return {__builtin_bit_cast(float_vector, __builtin_bit_cast(int_vector, size.raw) | (wide >> 15 << 31))};
}
template <class Row>
KVPOLICY_OP void load_columns(Row const& row, floats (&column)[4]) {
  auto const a = loaded<float_vector>(row(0)), b = loaded<float_vector>(row(1)), c = loaded<float_vector>(row(2)),
             d = loaded<float_vector>(row(3));
  for (int i = 0; i < 4; ++i) column[i].raw = float_vector{a[i], b[i], c[i], d[i]};
}
KVPOLICY_OP void store(floats some, float* to) { store_raw(some.raw, to); }
KVPOLICY_OP void store(ints some, int* to) { store_raw(some.raw, to); }
KVPOLICY_OP void stream(ints some, std::byte* to) { std::memcpy(to, &some.raw, sizeof some.raw); }
KVPOLICY_OP void store_roots(doubles a, float* to) {
  for (int i = 0; i < width / 2; ++i) to[i] = static_cast<float>(__builtin_sqrt(a.raw[i]));
}
KVPOLICY_OP void store_f16(floats a, std::byte* to) {
  for (int i = 0; i < width; ++i) store(codec::f16, a.raw[i], to + 2 * i);
}
KVPOLICY_OP void store_bf16(floats a, std::byte* to) {
  for (int i = 0; i < width; ++i) store(codec::bf16, a.raw[i], to + 2 * i);
}

// Vectors of equal numbers, parts of vectors, and conversions

KVPOLICY_OP floats splat(float value) { return {float_vector{value, value, value, value}}; }
KVPOLICY_OP floats splat(four some) { return {some.raw}; }
KVPOLICY_OP ints splat(int value) { return {int_vector{} + value}; }
KVPOLICY_OP ints iota(vector_tag, int first) { return {int_vector{0, 1, 2, 3} + first}; }
template <int I>
KVPOLICY_OP four quarter(floats some) {
  return four{some.raw};  // nvcc 13 loses the braces of a template without the type
}
KVPOLICY_OP doubles lower_widened(floats a) { return {double_vector{a.raw[0], a.raw[1]}}; }
KVPOLICY_OP doubles upper_widened(floats a) { return {double_vector{a.raw[2], a.raw[3]}}; }
KVPOLICY_OP floats even_bf16(ints pairs) { return {__builtin_bit_cast(float_vector, pairs.raw << 16)}; }
KVPOLICY_OP floats odd_bf16(ints pairs) { return {__builtin_bit_cast(float_vector, pairs.raw & -0x10000)}; }
KVPOLICY_OP floats even_f16(ints pairs) { return f16_magnitudes((pairs.raw << 13) & 0x7FFF << 13); }
KVPOLICY_OP floats odd_f16(ints pairs) { return f16_magnitudes((pairs.raw >> 3) & 0x7FFF << 13); }
KVPOLICY_OP ints bit_cast_ints(floats a) { return {__builtin_bit_cast(int_vector, a.raw)}; }
KVPOLICY_OP ints truncate(floats a) { return {__builtin_convertvector(a.raw, int_vector)}; }
KVPOLICY_OP floats to_floats(ints a) { return {__builtin_convertvector(a.raw, float_vector)}; }

// Arithmetic

KVPOLICY_OP ints operator+(ints a, ints b) { return {a.raw + b.raw}; }
KVPOLICY_OP floats mul_add(floats a, floats b, floats c) { return {a.raw * b.raw + c.raw}; }
KVPOLICY_OP doubles mul_add(doubles a, doubles b, doubles c) { return {a.raw * b.raw + c.raw}; }
KVPOLICY_OP float mul_add(float a, float b, float c) { return a * b + c; }
KVPOLICY_OP floats max_or_second(floats a, floats b) { return {a.raw > b.raw ? a.raw : b.raw}; }
KVPOLICY_OP floats min_or_second(floats a, floats b) { return {a.raw < b.raw ? a.raw : b.raw}; }
/// Unsigned: entries that a row does not see may be far above its maximum, and their results are dropped.
KVPOLICY_OP floats split_power(floats a, floats& exponent) {
  auto const bits = __builtin_bit_cast(int_vector, a.raw);
  exponent = {__builtin_convertvector((bits >> 23) - 127, float_vector)};
  return {__builtin_bit_cast(float_vector, (bits & 0x7FFFFF) | 0x3F800000)};
}
KVPOLICY_OP floats scale_by_power(floats p, ints n) {
  word_vector const bits = __builtin_bit_cast(word_vector, p.raw) + (__builtin_bit_cast(word_vector, n.raw) << 23);
  return {__builtin_bit_cast(float_vector, bits)};
}
KVPOLICY_OP double reduce_add(doubles a) { return a.raw[0] + a.raw[1]; }
KVPOLICY_OP four reduce_add_each(floats a, floats b, floats c, floats d) {
  return {float_vector{(a.raw[0] + a.raw[1]) + (a.raw[2] + a.raw[3]), (b.raw[0] + b.raw[1]) + (b.raw[2] + b.raw[3]),
                       (c.raw[0] + c.raw[1]) + (c.raw[2] + c.raw[3]), (d.raw[0] + d.raw[1]) + (d.raw[2] + d.raw[3])}};
}

// Comparisons and masks

KVPOLICY_OP mask operator>(ints a, ints b) { return {a.raw > b.raw}; }
KVPOLICY_OP mask operator==(floats a, floats b) { return {a.raw == b.raw}; }
KVPOLICY_OP mask operator<(floats a, floats b) { return {a.raw < b.raw}; }
KVPOLICY_OP mask operator<=(floats a, floats b) { return {a.raw <= b.raw}; }
KVPOLICY_OP mask not_less(floats a, floats b) { return {~(a.raw < b.raw)}; }
KVPOLICY_OP mask either_is_nan(floats a, floats b) { return {(a.raw != a.raw) | (b.raw != b.raw)}; }
KVPOLICY_OP mask operator&(mask a, mask b) { return {a.raw & b.raw}; }
KVPOLICY_OP mask operator|(mask a, mask b) { return {a.raw | b.raw}; }
KVPOLICY_OP mask operator!(mask a) { return {~a.raw}; }
KVPOLICY_OP bool any(mask a) { return (a.raw[0] | a.raw[1] | a.raw[2] | a.raw[3]) != 0; }
KVPOLICY_OP unsigned bits_of(mask a) {
  return static_cast<unsigned>((a.raw[0] & 1) | (a.raw[1] & 2) | (a.raw[2] & 4) | (a.raw[3] & 8));
}
KVPOLICY_OP ints choose(mask which, ints yes, ints no) { return {which.raw ? yes.raw : no.raw}; }
KVPOLICY_OP floats choose(mask which, floats yes, floats no) { return {which.raw ? yes.raw : no.raw}; }
KVPOLICY_OP floats choose_or_zero(mask which, floats some) {
  return {__builtin_bit_cast(float_vector, __builtin_bit_cast(int_vector, some.raw) & which.raw)};
}

// Words of 32 entries

KVPOLICY_OP std::uint32_t sign_bits(int const* numbers, int less) {
  std::uint32_t signs = 0;
  for (int i = 0; i < 32; ++i)
    signs |= (static_cast<std::uint32_t>(numbers[i]) - static_cast<std::uint32_t>(less)) >> 31 << i;
  return signs;
}
/// A product gathers eight marks in its highest byte, where the lowest byte of a word is that of the first mark.
KVPOLICY_OP std::uint32_t nonzero_bits(unsigned char const* marks) {
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
