// SPDX-License-Identifier: Apache-2.0
// Vectors of eight numbers with AVX2: see simd/operations.hpp.

constexpr int width = 8;
constexpr bool has_integers = true;
constexpr bool has_f16 = true;
constexpr bool has_scaling = false;

struct floats {
  __m256 raw;
};
struct doubles {
  __m256d raw;
};
struct ints {
  __m256i raw;
};
struct mask {  // all bits of a number are set, or none
  __m256i raw;
};
struct four {
  __m128 raw;
};

template <int Bytes>
using padded = zero_padded<Bytes>;

// Floats and doubles

KVPOLICY_OP floats load(float const* from) { return {_mm256_loadu_ps(from)}; }
KVPOLICY_OP doubles mul_add(doubles a, doubles b, doubles c) { return {_mm256_fmadd_pd(a.raw, b.raw, c.raw)}; }

KVPOLICY_OP doubles load_widened(std::byte const* from) {
  return {_mm256_cvtps_pd(_mm_loadu_ps(reinterpret_cast<float const*>(from)))};
}
KVPOLICY_OP doubles lower_widened(floats a) { return {_mm256_cvtps_pd(_mm256_castps256_ps128(a.raw))}; }
KVPOLICY_OP doubles upper_widened(floats a) { return {_mm256_cvtps_pd(_mm256_extractf128_ps(a.raw, 1))}; }
KVPOLICY_OP doubles load(double const* from) { return {_mm256_loadu_pd(from)}; }
KVPOLICY_OP double reduce_add(doubles a) {
  __m128d const two = _mm_add_pd(_mm256_castpd256_pd128(a.raw), _mm256_extractf128_pd(a.raw, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
KVPOLICY_OP void store_roots(doubles a, float* to) { _mm_storeu_ps(to, _mm256_cvtpd_ps(_mm256_sqrt_pd(a.raw))); }

KVPOLICY_OP floats load_f16(std::byte const* from) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<__m128i const*>(from)))};
}
KVPOLICY_OP ints load_words(std::byte const* from) {
  return {_mm256_loadu_si256(reinterpret_cast<__m256i const*>(from))};
}
KVPOLICY_OP floats even_bf16(ints pairs) { return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs.raw, 16))}; }
KVPOLICY_OP floats odd_bf16(ints pairs) {
  return {_mm256_castsi256_ps(_mm256_and_si256(pairs.raw, _mm256_set1_epi32(-0x10000)))};
}
KVPOLICY_OP floats add_pairs(floats a, floats b) {
  __m256d const swapped = _mm256_castps_pd(_mm256_hadd_ps(a.raw, b.raw));
  return {_mm256_castpd_ps(_mm256_permute4x64_pd(swapped, 0xD8))};
}

// Integers and masks

KVPOLICY_OP ints load(int const* from) { return {_mm256_loadu_si256(reinterpret_cast<__m256i const*>(from))}; }
KVPOLICY_OP ints splat(int value) { return {_mm256_set1_epi32(value)}; }
KVPOLICY_OP ints iota(vector_tag, int first) {
  return {_mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))};
}
KVPOLICY_OP void store(ints some, int* to) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), some.raw); }
KVPOLICY_OP void stream(ints some, std::byte* to) { _mm256_stream_si256(reinterpret_cast<__m256i*>(to), some.raw); }
KVPOLICY_OP ints operator+(ints a, ints b) { return {_mm256_add_epi32(a.raw, b.raw)}; }
KVPOLICY_OP mask operator==(ints a, ints b) { return {_mm256_cmpeq_epi32(a.raw, b.raw)}; }
KVPOLICY_OP mask operator>(ints a, ints b) { return {_mm256_cmpgt_epi32(a.raw, b.raw)}; }
KVPOLICY_OP mask less_unsigned(ints a, ints end) {
  __m256i const flip = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  return {_mm256_cmpgt_epi32(_mm256_xor_si256(end.raw, flip), _mm256_xor_si256(a.raw, flip))};
}
KVPOLICY_OP mask operator|(mask a, mask b) { return {_mm256_or_si256(a.raw, b.raw)}; }
KVPOLICY_OP mask operator!(mask a) { return {_mm256_xor_si256(a.raw, _mm256_set1_epi32(-1))}; }
KVPOLICY_OP bool any(mask a) { return _mm256_testz_si256(a.raw, a.raw) == 0; }
KVPOLICY_OP mask nonzero(vector_tag, unsigned char const* marks) {
  __m128i const some = _mm_loadl_epi64(reinterpret_cast<__m128i const*>(marks));
  return {_mm256_cmpgt_epi32(_mm256_cvtepu8_epi32(some), _mm256_setzero_si256())};
}
KVPOLICY_OP ints choose(mask which, ints yes, ints no) { return {_mm256_blendv_epi8(no.raw, yes.raw, which.raw)}; }
KVPOLICY_OP ints gather(int const* map, ints at) { return {_mm256_i32gather_epi32(map, at.raw, 4)}; }
KVPOLICY_OP mask gather_nonzero(unsigned char const* bytes, ints at) {
  __m256i const found = _mm256_i32gather_epi32(reinterpret_cast<int const*>(bytes), at.raw, 1);
  return {_mm256_cmpgt_epi32(_mm256_and_si256(found, _mm256_set1_epi32(0xFF)), _mm256_setzero_si256())};
}
KVPOLICY_OP std::uint32_t sign_bits(int const* numbers, int less) {
  std::uint32_t signs = 0;
  for (int i = 0; i < 32; i += 8) {
    __m256i const some = _mm256_sub_epi32(load(numbers + i).raw, _mm256_set1_epi32(less));
    signs |= static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(some))) << i;
  }
  return signs;
}
KVPOLICY_OP std::uint32_t nonzero_bits(unsigned char const* marks) {
  __m256i const some = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(marks));
  return ~static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(some, _mm256_setzero_si256())));
}
KVPOLICY_OP void compress_store(ints some, unsigned which, int more, bool room, int* to) {
  __m128i const order = _mm_cvtsi64_si128(static_cast<long long>(places.of[which]));
  __m256i const packed = _mm256_permutevar8x32_epi32(some.raw, _mm256_cvtepu8_epi32(order));
  if (room || more == width) return store(ints{packed}, to);
  if (more > 0) _mm256_maskstore_epi32(to, (splat(more) > iota(vector_tag{}, 0)).raw, packed);
}

// Comparisons of floats

KVPOLICY_OP mask operator==(floats a, floats b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.raw, b.raw, _CMP_EQ_OQ))};
}
KVPOLICY_OP mask operator<(floats a, floats b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.raw, b.raw, _CMP_LT_OQ))};
}
KVPOLICY_OP mask operator<=(floats a, floats b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.raw, b.raw, _CMP_LE_OQ))};
}
KVPOLICY_OP mask either_is_nan(floats a, floats b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.raw, b.raw, _CMP_UNORD_Q))};
}
KVPOLICY_OP mask operator&(mask a, mask b) { return {_mm256_and_si256(a.raw, b.raw)}; }
KVPOLICY_OP unsigned bits_of(mask a) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(a.raw))); }
KVPOLICY_OP floats choose(mask which, floats yes, floats no) {
  return {_mm256_blendv_ps(no.raw, yes.raw, _mm256_castsi256_ps(which.raw))};
}

// Logits and softmax

KVPOLICY_OP floats load_bf16(std::byte const* from) {
  __m128i const some = _mm_loadu_si128(reinterpret_cast<__m128i const*>(from));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(some), 16))};
}
KVPOLICY_OP void store(floats some, float* to) { _mm256_storeu_ps(to, some.raw); }
KVPOLICY_OP floats splat(float value) { return {_mm256_set1_ps(value)}; }
KVPOLICY_OP floats splat(four some) { return {_mm256_insertf128_ps(_mm256_castps128_ps256(some.raw), some.raw, 1)}; }
KVPOLICY_OP floats splat_four(void const* from) { return {_mm256_broadcast_ps(static_cast<__m128 const*>(from))}; }
template <int I>
KVPOLICY_OP four quarter(floats some) {
  return four{_mm256_extractf128_ps(some.raw, I)};
}
KVPOLICY_OP floats mul_add(floats a, floats b, floats c) { return {_mm256_fmadd_ps(a.raw, b.raw, c.raw)}; }
KVPOLICY_OP float mul_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
KVPOLICY_OP floats max_or_second(floats a, floats b) { return {_mm256_max_ps(a.raw, b.raw)}; }
KVPOLICY_OP floats min_or_second(floats a, floats b) { return {_mm256_min_ps(a.raw, b.raw)}; }

KVPOLICY_OP mask not_less(floats a, floats b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.raw, b.raw, _CMP_NLT_UQ))};
}
KVPOLICY_OP floats choose_or_zero(mask which, floats some) {
  return {_mm256_and_ps(_mm256_castsi256_ps(which.raw), some.raw)};
}

KVPOLICY_OP ints truncate(floats a) { return {_mm256_cvttps_epi32(a.raw)}; }
KVPOLICY_OP floats to_floats(ints a) { return {_mm256_cvtepi32_ps(a.raw)}; }
KVPOLICY_OP floats split_power(floats a, floats& exponent) {
  __m256i const bits = _mm256_castps_si256(a.raw);
  exponent = {_mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srai_epi32(bits, 23), _mm256_set1_epi32(127)))};
  __m256i const mantissa = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFF));
  return {_mm256_castsi256_ps(_mm256_or_si256(mantissa, _mm256_set1_epi32(0x3F800000)))};
}
KVPOLICY_OP floats scale_by_power(floats p, ints n) {
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.raw), _mm256_slli_epi32(n.raw, 23)))};
}
KVPOLICY_OP four reduce_add_each(floats a, floats b, floats c, floats d) {
  __m256 const all = _mm256_hadd_ps(_mm256_hadd_ps(a.raw, b.raw), _mm256_hadd_ps(c.raw, d.raw));
  return {_mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1))};
}

// Rows of keys, of weights and of new tokens

KVPOLICY_OP ints bit_cast_ints(floats a) { return {_mm256_castps_si256(a.raw)}; }
template <class Row>
KVPOLICY_OP void load_columns(Row const& row, floats (&column)[4]) {
  auto const rows = [&](int r) KVPOLICY_INLINED {
    __m256 const lower = _mm256_castps128_ps256(_mm_loadu_ps(reinterpret_cast<float const*>(row(r))));
    return _mm256_insertf128_ps(lower, _mm_loadu_ps(reinterpret_cast<float const*>(row(r + 4))), 1);
  };
  __m256 const a = rows(0), b = rows(1), c = rows(2), d = rows(3);
  __m256d const low = _mm256_castps_pd(_mm256_unpacklo_ps(a, b)), high = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
  __m256d const next = _mm256_castps_pd(_mm256_unpacklo_ps(c, d)), last = _mm256_castps_pd(_mm256_unpackhi_ps(c, d));
  column[0].raw = _mm256_castpd_ps(_mm256_unpacklo_pd(low, next));
  column[1].raw = _mm256_castpd_ps(_mm256_unpackhi_pd(low, next));
  column[2].raw = _mm256_castpd_ps(_mm256_unpacklo_pd(high, last));
  column[3].raw = _mm256_castpd_ps(_mm256_unpackhi_pd(high, last));
}
/// The lower halves of all numbers, which are below 2^16; those of `nan` where a is NaN.
KVPOLICY_OP void store_halves(floats a, __m256i halves, __m256i nan, std::byte* to) {
  __m256i const is_nan = _mm256_castps_si256(_mm256_cmp_ps(a.raw, a.raw, _CMP_UNORD_Q));
  __m256i const all = _mm256_blendv_epi8(halves, nan, is_nan);
  __m256i const packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(all, all), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
}
KVPOLICY_OP void store_f16(floats a, std::byte* to) {
  __m128i const halves = _mm256_cvtps_ph(a.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256i const sign = _mm256_and_si256(_mm256_srli_epi32(bit_cast_ints(a).raw, 16), _mm256_set1_epi32(0x8000));
  store_halves(a, _mm256_cvtepu16_epi32(halves), _mm256_or_si256(sign, _mm256_set1_epi32(0x7E00)), to);
}
KVPOLICY_OP void store_bf16(floats a, std::byte* to) {
  __m256i const bits = bit_cast_ints(a).raw, upper = _mm256_srli_epi32(bits, 16);
  __m256i const half = _mm256_add_epi32(_mm256_and_si256(upper, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7FFF));
  __m256i const nan = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  store_halves(a, _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16), nan, to);
}
