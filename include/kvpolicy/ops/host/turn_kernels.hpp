// Rotation of a key's contiguous halves by the sum of two angles, for each instruction set.
//
// A product is rounded before it is added to another one, so all instruction sets give the same bits.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <kvpolicy/ops/host/element_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/rows.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Rotates channel i of a key with channel i + pairs by the sum of angle i of `a` and of `b`. The channels are
/// contiguous, at any address. A table of angles has the cosines of all pairs first, and then their sines.
struct turn_kernels {
  /// The sums of the angles of two tables, computed in double.
  void (*add_angles)(double const* a, double const* b, int pairs, float* to) = nullptr;
  using function = void (*)(std::byte* key, int pairs, float const* a, float const* b);
  function f32 = nullptr;
  function f16 = nullptr;
  function bf16 = nullptr;

  [[nodiscard]] function of(codec element) const {
    return element == codec::f32 ? f32 : element == codec::f16 ? f16 : bf16;
  }
};

/// Code for any compiler and processor. It is not inlined into functions for other instruction sets, where compilers
/// would add a product without rounding it first.
struct portable_turns {
  [[gnu::noinline]] static void add_angles(double const* a, double const* b, int pairs, float* to) {
    for (int i = 0; i < pairs; ++i) add_angle(a, b, pairs, i, to);
  }
  [[gnu::noinline]] static void add_angle(double const* a, double const* b, int pairs, int i, float* to) {
    to[i] = static_cast<float>(a[i] * b[i] - a[pairs + i] * b[pairs + i]);
    to[pairs + i] = static_cast<float>(a[pairs + i] * b[i] + a[i] * b[pairs + i]);
  }
  template <codec Element>
  static void turn(std::byte* key, int pairs, float const* a, float const* b) {
    turn_from<Element>(0, key, pairs, a, b);
  }
  /// The same, from pair `begin` on.
  template <codec Element>
  [[gnu::noinline]] static void turn_from(int begin, std::byte* key, int pairs, float const* a, float const* b) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    for (int i = begin; i < pairs; ++i) {
      float const cosine = a[i] * b[i] - a[pairs + i] * b[pairs + i];
      float const sine = a[pairs + i] * b[i] + a[i] * b[pairs + i];
      std::byte* const first = key + i * width;
      std::byte* const second = first + pairs * width;
      float const x = load(Element, first), y = load(Element, second);
      store(Element, x * cosine - y * sine, first);
      store(Element, y * cosine + x * sine, second);
    }
  }
  static constexpr turn_kernels kernels{add_angles, turn<codec::f32>, turn<codec::f16>, turn<codec::bf16>};
};

#if defined(__x86_64__)

struct avx2_turns {
  /// Rounds a product: the compiler cannot join it with an addition.
  template <class Vector>
  [[gnu::target(KVPOLICY_AVX2)]] static void round(Vector& product) {
    asm("" : "+x"(product));
  }
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX2)]] static void put_eight(__m256 value, std::byte* to) {
    if constexpr (Element == codec::f32) {
      _mm256_storeu_ps(reinterpret_cast<float*>(to), value);
    } else {
      __m256i const bits = _mm256_castps_si256(value);
      __m256i const nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
      __m256i wide;
      if constexpr (Element == codec::f16) {
        wide = _mm256_cvtepu16_epi32(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        __m256i const sign = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x8000));
        wide = _mm256_blendv_epi8(wide, _mm256_or_si256(sign, _mm256_set1_epi32(0x7E00)), nan);
      } else {
        __m256i const upper = _mm256_srli_epi32(bits, 16);
        __m256i const odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
        wide = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF))), 16);
        wide = _mm256_blendv_epi8(wide, _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), nan);
      }
      __m256i const packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(wide, wide), 0x08);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
    }
  }
  /// (x, y), turned by the angle with this cosine and sine.
  [[gnu::target(KVPOLICY_AVX2)]] static void turn_pairs(__m256& x, __m256& y, __m256 c, __m256 s) {
    __m256 xc = _mm256_mul_ps(x, c), ys = _mm256_mul_ps(y, s), yc = _mm256_mul_ps(y, c), xs = _mm256_mul_ps(x, s);
    round(xc), round(ys), round(yc), round(xs);
    x = _mm256_sub_ps(xc, ys);
    y = _mm256_add_ps(yc, xs);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static void add_angles(double const* a, double const* b, int pairs, float* to) {
    int i = 0;
    for (; i + 4 <= pairs; i += 4) {
      __m256d const ac = _mm256_loadu_pd(a + i), as = _mm256_loadu_pd(a + pairs + i);
      __m256d const bc = _mm256_loadu_pd(b + i), bs = _mm256_loadu_pd(b + pairs + i);
      __m256d cc = _mm256_mul_pd(ac, bc), ss = _mm256_mul_pd(as, bs);
      __m256d sc = _mm256_mul_pd(as, bc), cs = _mm256_mul_pd(ac, bs);
      round(cc), round(ss), round(sc), round(cs);
      _mm_storeu_ps(to + i, _mm256_cvtpd_ps(_mm256_sub_pd(cc, ss)));
      _mm_storeu_ps(to + pairs + i, _mm256_cvtpd_ps(_mm256_add_pd(sc, cs)));
    }
    for (; i < pairs; ++i) portable_turns::add_angle(a, b, pairs, i, to);
  }
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX2)]] static void turn(std::byte* key, int pairs, float const* a, float const* b) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    int i = 0;
    for (; i + 8 <= pairs; i += 8) {
      std::byte* const first = key + i * width;
      std::byte* const second = first + pairs * width;
      __m256 c = _mm256_loadu_ps(a + i), s = _mm256_loadu_ps(a + pairs + i);
      turn_pairs(c, s, _mm256_loadu_ps(b + i), _mm256_loadu_ps(b + pairs + i));
      __m256 x = avx2_element_rows::eight<Element>(first), y = avx2_element_rows::eight<Element>(second);
      turn_pairs(x, y, c, s);
      put_eight<Element>(x, first);
      put_eight<Element>(y, second);
    }
    if (i < pairs) portable_turns::turn_from<Element>(i, key, pairs, a, b);
  }
  static constexpr turn_kernels kernels{add_angles, turn<codec::f32>, turn<codec::f16>, turn<codec::bf16>};
};

struct avx512_turns {
  static constexpr __mmask16 all = 0xFFFF;  ///< without a mask, g++ 12 warns inside its own header
  static constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

  template <class Vector>
  [[gnu::target(KVPOLICY_AVX512)]] static void round(Vector& product) {
    asm("" : "+v"(product));
  }
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX512)]] static void put_both(__m512 x, __m512 y, std::byte* first, std::byte* second) {
    if constexpr (Element == codec::f32) {
      _mm512_storeu_ps(first, x);
      _mm512_storeu_ps(second, y);
    } else {
      __mmask16 const nan = _mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q);
      if constexpr (Element == codec::f16) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(first), _mm512_maskz_cvtps_ph(all, x, nearest));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(second), _mm512_maskz_cvtps_ph(all, y, nearest));
      } else {
        put_bf16(_mm512_castps_si512(x), _mm512_castps_si512(y), first, second);
      }
      if (nan != 0) [[unlikely]] {  // each type has a NaN of its own
        float numbers[32];
        _mm512_storeu_ps(numbers, x), _mm512_storeu_ps(numbers + 16, y);
        store_row(Element, numbers, 2, 16, first), store_row(Element, numbers + 16, 2, 16, second);
      }
    }
  }
  /// Rounds to nearest even, and takes the upper halves.
  [[gnu::target(KVPOLICY_AVX512)]] static void put_bf16(__m512i x, __m512i y, std::byte* first, std::byte* second) {
    alignas(64) static constexpr std::uint16_t uppers[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                             23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                             45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    __m512i const lowest = _mm512_set1_epi32(0x10000), below_half = _mm512_set1_epi32(0x7FFF);
    __m512i const half = _mm512_set1_epi32(0x8000);
    __m512i const up_x = _mm512_mask_blend_epi32(_mm512_test_epi32_mask(x, lowest), below_half, half);
    __m512i const up_y = _mm512_mask_blend_epi32(_mm512_test_epi32_mask(y, lowest), below_half, half);
    __m512i const packed =
        _mm512_permutex2var_epi16(_mm512_add_epi32(x, up_x), _mm512_load_si512(uppers), _mm512_add_epi32(y, up_y));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(first), _mm512_maskz_extracti64x4_epi64(0xF, packed, 0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(second), _mm512_maskz_extracti64x4_epi64(0xF, packed, 1));
  }
  /// (x, y), turned by the angle with this cosine and sine.
  [[gnu::target(KVPOLICY_AVX512)]] static void turn_pairs(__m512& x, __m512& y, __m512 c, __m512 s) {
    __m512 xc = _mm512_mul_ps(x, c), ys = _mm512_mul_ps(y, s), yc = _mm512_mul_ps(y, c), xs = _mm512_mul_ps(x, s);
    round(xc), round(ys), round(yc), round(xs);
    x = _mm512_sub_ps(xc, ys);
    y = _mm512_add_ps(yc, xs);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void add_angles(double const* a, double const* b, int pairs, float* to) {
    int i = 0;
    for (; i + 8 <= pairs; i += 8) {
      __m512d const ac = _mm512_loadu_pd(a + i), as = _mm512_loadu_pd(a + pairs + i);
      __m512d const bc = _mm512_loadu_pd(b + i), bs = _mm512_loadu_pd(b + pairs + i);
      __m512d cc = _mm512_mul_pd(ac, bc), ss = _mm512_mul_pd(as, bs);
      __m512d sc = _mm512_mul_pd(as, bc), cs = _mm512_mul_pd(ac, bs);
      round(cc), round(ss), round(sc), round(cs);
      _mm256_storeu_ps(to + i, _mm512_maskz_cvtpd_ps(0xFF, _mm512_sub_pd(cc, ss)));
      _mm256_storeu_ps(to + pairs + i, _mm512_maskz_cvtpd_ps(0xFF, _mm512_add_pd(sc, cs)));
    }
    for (; i < pairs; ++i) portable_turns::add_angle(a, b, pairs, i, to);
  }
  template <codec Element>
  [[gnu::target(KVPOLICY_AVX512)]] static void turn(std::byte* key, int pairs, float const* a, float const* b) {
    constexpr std::ptrdiff_t width = bytes_of(Element);
    int i = 0;
    for (; i + 16 <= pairs; i += 16) {
      std::byte* const first = key + i * width;
      std::byte* const second = first + pairs * width;
      __m512 c = _mm512_loadu_ps(a + i), s = _mm512_loadu_ps(a + pairs + i);
      turn_pairs(c, s, _mm512_loadu_ps(b + i), _mm512_loadu_ps(b + pairs + i));
      __m512 x = avx512_element_rows::sixteen<Element>(first, all);
      __m512 y = avx512_element_rows::sixteen<Element>(second, all);
      turn_pairs(x, y, c, s);
      put_both<Element>(x, y, first, second);
    }
    if (i < pairs) portable_turns::turn_from<Element>(i, key, pairs, a, b);
  }
  static constexpr turn_kernels kernels{add_angles, turn<codec::f32>, turn<codec::f16>, turn<codec::bf16>};
};

#endif

/// The kernels for an executor's instruction set.
[[nodiscard]] inline turn_kernels const& turns_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_turns::kernels;
  if (simd_level == isa::avx2) return avx2_turns::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_turns::kernels;
}

}  // namespace KVPOLICY_NAMESPACE::detail
