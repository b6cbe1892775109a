// SPDX-License-Identifier: Apache-2.0
// Vectors of sixteen numbers with AVX-512 (F, BW, VL, DQ): see simd/operations.hpp.
//
// g++ 12 warns inside the header of some unmasked intrinsics. Their masked forms are used with all bits set.

constexpr int width = 16;
constexpr bool has_integers = true;
constexpr bool has_f16 = true;
constexpr bool has_scaling = true;

struct floats {
  __m512 raw;
};
struct doubles {
  __m512d raw;
};
struct ints {
  __m512i raw;
};
struct mask {
  __mmask16 raw;
};
struct four {
  __m128 raw;
};

/// The last bytes of a row: loads read what is there, and zeros after them.
struct rest_of_row {
  std::byte const* from;
  int bytes;
};
KVPOLICY_OP rest_of_row operator+(rest_of_row row, int bytes) { return {row.from + bytes, row.bytes - bytes}; }
/// The elements of `size` bytes that are there, a bit each.
KVPOLICY_OP unsigned there(rest_of_row row, int size) {
  return row.bytes <= 0 ? 0u : _bzhi_u32(~0u, static_cast<unsigned>(row.bytes / size));
}
template <int Bytes>
struct padded {
  rest_of_row row;

  padded(std::byte const* from, int bytes) : row{from, bytes} {}
  [[nodiscard]] rest_of_row begin() const { return row; }
};

// Floats and doubles

KVPOLICY_OP doubles mul_add(doubles a, doubles b, doubles c) { return {_mm512_fmadd_pd(a.raw, b.raw, c.raw)}; }

KVPOLICY_OP doubles widened(__m256 a) { return {_mm512_maskz_cvtps_pd(0xFF, a)}; }
KVPOLICY_OP doubles load_widened(std::byte const* from) {
  return widened(_mm256_loadu_ps(reinterpret_cast<float const*>(from)));
}
KVPOLICY_OP doubles load_widened(rest_of_row row) {
  return widened(_mm256_maskz_loadu_ps(static_cast<__mmask8>(there(row, 4)), row.from));
}
KVPOLICY_OP doubles lower_widened(floats a) { return widened(_mm512_maskz_extractf32x8_ps(0xFF, a.raw, 0)); }
KVPOLICY_OP doubles upper_widened(floats a) { return widened(_mm512_maskz_extractf32x8_ps(0xFF, a.raw, 1)); }
KVPOLICY_OP doubles load(double const* from) { return {_mm512_loadu_pd(from)}; }
KVPOLICY_OP double reduce_add(doubles a) {
  __m256d const half =
      _mm256_add_pd(_mm512_maskz_extractf64x4_pd(0xF, a.raw, 0), _mm512_maskz_extractf64x4_pd(0xF, a.raw, 1));
  __m128d const two = _mm_add_pd(_mm256_castpd256_pd128(half), _mm256_extractf128_pd(half, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
KVPOLICY_OP void store_roots(doubles a, float* to) {
  _mm256_storeu_ps(to, _mm512_maskz_cvtpd_ps(0xFF, _mm512_maskz_sqrt_pd(0xFF, a.raw)));
}

KVPOLICY_OP floats load_f16(std::byte const* from) {
  return {_mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<__m256i const*>(from)))};
}
KVPOLICY_OP floats load_f16(rest_of_row row) {
  return {_mm512_maskz_cvtph_ps(0xFFFF, _mm256_maskz_loadu_epi16(static_cast<__mmask16>(there(row, 2)), row.from))};
}
KVPOLICY_OP ints load_words(std::byte const* from) { return {_mm512_loadu_si512(from)}; }
KVPOLICY_OP ints load_words(rest_of_row row) { return {_mm512_maskz_loadu_epi16(there(row, 2), row.from)}; }
KVPOLICY_OP floats even_bf16(ints pairs) {
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xFFFF, pairs.raw, 16))};
}
KVPOLICY_OP floats odd_bf16(ints pairs) {
  return {_mm512_castsi512_ps(_mm512_and_si512(pairs.raw, _mm512_set1_epi32(-0x10000)))};
}
KVPOLICY_OP floats add_pairs(floats a, floats b) {
  __m512i const evens = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  __m512i const odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
  return {_mm512_add_ps(_mm512_permutex2var_ps(a.raw, evens, b.raw), _mm512_permutex2var_ps(a.raw, odds, b.raw))};
}

// Integers and masks

KVPOLICY_OP ints load(int const* from) { return {_mm512_loadu_si512(from)}; }
KVPOLICY_OP ints splat(int value) { return {_mm512_set1_epi32(value)}; }
KVPOLICY_OP ints iota(vector_tag, int first) {
  __m512i const step = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return {_mm512_add_epi32(_mm512_set1_epi32(first), step)};
}
KVPOLICY_OP void store(ints some, int* to) { _mm512_storeu_si512(to, some.raw); }
KVPOLICY_OP void stream(ints some, std::byte* to) { _mm512_stream_si512(reinterpret_cast<__m512i*>(to), some.raw); }
KVPOLICY_OP ints operator+(ints a, ints b) { return {_mm512_add_epi32(a.raw, b.raw)}; }
KVPOLICY_OP mask operator==(ints a, ints b) { return {_mm512_cmpeq_epi32_mask(a.raw, b.raw)}; }
KVPOLICY_OP mask operator>(ints a, ints b) { return {_mm512_cmpgt_epi32_mask(a.raw, b.raw)}; }
KVPOLICY_OP mask less_unsigned(ints a, ints end) { return {_mm512_cmplt_epu32_mask(a.raw, end.raw)}; }
KVPOLICY_OP mask operator|(mask a, mask b) { return {static_cast<__mmask16>(a.raw | b.raw)}; }
KVPOLICY_OP mask operator!(mask a) { return {static_cast<__mmask16>(~a.raw)}; }
KVPOLICY_OP bool any(mask a) { return a.raw != 0; }
KVPOLICY_OP mask nonzero(vector_tag, unsigned char const* marks) {
  __m128i const some = _mm_loadu_si128(reinterpret_cast<__m128i const*>(marks));
  return {_mm_test_epi8_mask(some, some)};
}
KVPOLICY_OP ints choose(mask which, ints yes, ints no) { return {_mm512_mask_blend_epi32(which.raw, no.raw, yes.raw)}; }
// Without optimization g++ 12 has macros for these, which convert the sign of masks.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
KVPOLICY_OP ints gather(int const* map, ints at) {
  return {_mm512_mask_i32gather_epi32(_mm512_setzero_si512(), 0xFFFF, at.raw, map, 4)};
}
KVPOLICY_OP mask gather_nonzero(unsigned char const* bytes, ints at) {
  __m512i const found = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), 0xFFFF, at.raw, bytes, 1);
  return {_mm512_test_epi32_mask(found, _mm512_set1_epi32(0xFF))};
}
#pragma GCC diagnostic pop
KVPOLICY_OP std::uint32_t sign_bits(int const* numbers, int less) {
  __m512i const by = _mm512_set1_epi32(less);
  std::uint32_t const low = _mm512_movepi32_mask(_mm512_sub_epi32(_mm512_loadu_si512(numbers), by));
  std::uint32_t const high = _mm512_movepi32_mask(_mm512_sub_epi32(_mm512_loadu_si512(numbers + 16), by));
  return low | high << 16;
}
KVPOLICY_OP std::uint32_t nonzero_bits(unsigned char const* marks) {
  __m256i const some = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(marks));
  return _mm256_test_epi8_mask(some, some);
}
KVPOLICY_OP void compress_store(ints some, unsigned which, int more, bool room, int* to) {
  __m512i const packed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(which), some.raw);
  if (room) return _mm512_storeu_si512(to, packed);
  _mm512_mask_storeu_epi32(to, static_cast<__mmask16>((1u << more) - 1), packed);
}

// Comparisons of floats

KVPOLICY_OP mask operator==(floats a, floats b) { return {_mm512_cmp_ps_mask(a.raw, b.raw, _CMP_EQ_OQ)}; }
KVPOLICY_OP mask operator<(floats a, floats b) { return {_mm512_cmp_ps_mask(a.raw, b.raw, _CMP_LT_OQ)}; }
KVPOLICY_OP mask operator<=(floats a, floats b) { return {_mm512_cmp_ps_mask(a.raw, b.raw, _CMP_LE_OQ)}; }
KVPOLICY_OP mask either_is_nan(floats a, floats b) { return {_mm512_cmp_ps_mask(a.raw, b.raw, _CMP_UNORD_Q)}; }
KVPOLICY_OP mask operator&(mask a, mask b) { return {static_cast<__mmask16>(a.raw & b.raw)}; }
KVPOLICY_OP unsigned bits_of(mask a) { return a.raw; }
KVPOLICY_OP floats choose(mask which, floats yes, floats no) {
  return {_mm512_mask_blend_ps(which.raw, no.raw, yes.raw)};
}

// Logits and softmax

KVPOLICY_OP floats load(float const* from) { return {_mm512_loadu_ps(from)}; }
KVPOLICY_OP floats load_bf16(std::byte const* from) {
  __m256i const some = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(from));
  return {_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xFFFF, _mm512_maskz_cvtepu16_epi32(0xFFFF, some), 16))};
}
KVPOLICY_OP void store(floats some, float* to) { _mm512_storeu_ps(to, some.raw); }
KVPOLICY_OP floats splat(float value) { return {_mm512_set1_ps(value)}; }
KVPOLICY_OP floats splat(four some) { return {_mm512_maskz_broadcast_f32x4(0xFFFF, some.raw)}; }
KVPOLICY_OP floats splat_four(void const* from) {
  return {_mm512_maskz_broadcast_f32x4(0xFFFF, _mm_loadu_ps(static_cast<float const*>(from)))};
}
template <int I>
KVPOLICY_OP four quarter(floats some) {
  return four{_mm512_maskz_extractf32x4_ps(0xF, some.raw, I)};
}
KVPOLICY_OP floats mul_add(floats a, floats b, floats c) { return {_mm512_fmadd_ps(a.raw, b.raw, c.raw)}; }
KVPOLICY_OP float mul_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
KVPOLICY_OP floats max_or_second(floats a, floats b) { return {_mm512_maskz_max_ps(0xFFFF, a.raw, b.raw)}; }
KVPOLICY_OP floats min_or_second(floats a, floats b) { return {_mm512_maskz_min_ps(0xFFFF, a.raw, b.raw)}; }

KVPOLICY_OP mask not_less(floats a, floats b) { return {_mm512_cmp_ps_mask(a.raw, b.raw, _CMP_NLT_UQ)}; }
KVPOLICY_OP floats choose_or_zero(mask which, floats some) { return {_mm512_maskz_mov_ps(which.raw, some.raw)}; }

KVPOLICY_OP floats truncate(floats a) {
  return {_mm512_maskz_cvtepi32_ps(0xFFFF, _mm512_maskz_cvttps_epi32(0xFFFF, a.raw))};
}
KVPOLICY_OP floats to_floats(floats a) { return a; }
KVPOLICY_OP floats split_power(floats a, floats& exponent) {
  __m512i const bits = _mm512_castps_si512(a.raw);
  __m512i const power = _mm512_sub_epi32(_mm512_maskz_srli_epi32(0xFFFF, bits, 23), _mm512_set1_epi32(127));
  exponent = {_mm512_maskz_cvtepi32_ps(0xFFFF, power)};
  __m512i const mantissa = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFF));
  return {_mm512_castsi512_ps(_mm512_or_si512(mantissa, _mm512_set1_epi32(0x3F800000)))};
}
KVPOLICY_OP floats scale_by_power(floats p, floats n) { return {_mm512_maskz_scalef_ps(0xFFFF, p.raw, n.raw)}; }
KVPOLICY_OP floats add_blocks_transposed(floats a, floats b, floats c, floats d) {
  __mmask16 const all = 0xFFFF;
  __m512 const ab =
      _mm512_add_ps(_mm512_maskz_unpacklo_ps(all, a.raw, b.raw), _mm512_maskz_unpackhi_ps(all, a.raw, b.raw));
  __m512 const cd =
      _mm512_add_ps(_mm512_maskz_unpacklo_ps(all, c.raw, d.raw), _mm512_maskz_unpackhi_ps(all, c.raw, d.raw));
  return {_mm512_add_ps(_mm512_maskz_shuffle_ps(all, ab, cd, 0x44), _mm512_maskz_shuffle_ps(all, ab, cd, 0xEE))};
}
KVPOLICY_OP four reduce_add_each(floats a, floats b, floats c, floats d) {
  __m512 const all = add_blocks_transposed(a, b, c, d).raw;
  __m256 const two =
      _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xFF, all, 0), _mm512_maskz_extractf32x8_ps(0xFF, all, 1));
  return {_mm_add_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1))};
}
KVPOLICY_OP floats transposed_square(floats a) {
  __m512i const order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return {_mm512_maskz_permutexvar_ps(0xFFFF, order, a.raw)};
}

// Rows of keys, of weights and of new tokens

KVPOLICY_OP ints bit_cast_ints(floats a) { return {_mm512_castps_si512(a.raw)}; }
template <class Row>
KVPOLICY_OP void load_columns(Row const& row, floats (&column)[4]) {
  constexpr __mmask16 all = 0xFFFF;
  auto const four_of = [&](int r) KVPOLICY_INLINED { return _mm_loadu_ps(reinterpret_cast<float const*>(row(r))); };
  auto const rows = [&](int r) KVPOLICY_INLINED {
    __m512 made = _mm512_maskz_broadcast_f32x4(0x000F, four_of(r));
    made = _mm512_mask_broadcast_f32x4(made, 0x00F0, four_of(r + 4));
    made = _mm512_mask_broadcast_f32x4(made, 0x0F00, four_of(r + 8));
    return _mm512_mask_broadcast_f32x4(made, 0xF000, four_of(r + 12));
  };
  auto const low_of = [](auto a, auto b)
                          KVPOLICY_INLINED { return _mm512_castps_pd(_mm512_maskz_unpacklo_ps(all, a, b)); };
  auto const high_of = [](auto a, auto b)
                           KVPOLICY_INLINED { return _mm512_castps_pd(_mm512_maskz_unpackhi_ps(all, a, b)); };
  __m512 const a = rows(0), b = rows(1), c = rows(2), d = rows(3);
  column[0].raw = _mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xFF, low_of(a, b), low_of(c, d)));
  column[1].raw = _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xFF, low_of(a, b), low_of(c, d)));
  column[2].raw = _mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xFF, high_of(a, b), high_of(c, d)));
  column[3].raw = _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xFF, high_of(a, b), high_of(c, d)));
}
/// The lower halves of all numbers; those of `nan` where a is NaN.
KVPOLICY_OP void store_halves(floats a, __m512i halves, __m512i nan, std::byte* to) {
  __m512i const all = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.raw, a.raw, _CMP_UNORD_Q), halves, nan);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_maskz_cvtepi32_epi16(0xFFFF, all));
}
KVPOLICY_OP void store_f16(floats a, std::byte* to) {
  __m256i const halves = _mm512_maskz_cvtps_ph(0xFFFF, a.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512i const upper = _mm512_maskz_srli_epi32(0xFFFF, bit_cast_ints(a).raw, 16);
  __m512i const sign = _mm512_and_si512(upper, _mm512_set1_epi32(0x8000));
  __m512i const nan = _mm512_or_si512(sign, _mm512_set1_epi32(0x7E00));
  store_halves(a, _mm512_maskz_cvtepu16_epi32(0xFFFF, halves), nan, to);
}
KVPOLICY_OP void store_bf16(floats a, std::byte* to) {
  __m512i const bits = bit_cast_ints(a).raw, upper = _mm512_maskz_srli_epi32(0xFFFF, bits, 16);
  __m512i const half = _mm512_add_epi32(_mm512_and_si512(upper, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7FFF));
  __m512i const nan = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
  store_halves(a, _mm512_maskz_srli_epi32(0xFFFF, _mm512_add_epi32(bits, half), 16), nan, to);
}

#if defined(KVPOLICY_PAIRS_OF_BF16)
/// Adds the products of a pair's two numbers, which are rounded as the processor does it.
KVPOLICY_OP floats add_product_of_pairs(floats sums, floats a, floats b) {
  return {_mm512_dpbf16_ps(sums.raw, __builtin_bit_cast(__m512bh, a.raw), __builtin_bit_cast(__m512bh, b.raw))};
}
#endif
