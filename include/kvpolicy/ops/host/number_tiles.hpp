// Numbers of eight neighbouring heads, token by token, that are turned into eight columns, for each instruction set.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int heads_of_a_tile = 8;

/// Writes the bf16 numbers of whole tiles of tokens as floats, a zero as -0: to[head][token]. The numbers of a token
/// are contiguous, and tokens are `step` bytes apart. Returns how many of the `count` tokens were written, from the
/// first on.
using turn_numbers = int (*)(std::byte const* from, std::int64_t step, int count, float* const* to);

/// Code for any compiler and processor leaves all tokens to its caller.
struct portable_number_tiles {
  static int turn([[maybe_unused]] std::byte const* from, [[maybe_unused]] std::int64_t step,
                  [[maybe_unused]] int count, [[maybe_unused]] float* const* to) {
#if defined(__x86_64__)
    return turn_fours(from, step, 0, count, to);
#else
    return 0;
#endif
  }

#if defined(__x86_64__)
  /// Turns four tokens at a time, from `first` on. A word of four bytes has two heads.
  static int turn_fours(std::byte const* from, std::int64_t step, int first, int count, float* const* to) {
    __m128i const odd = _mm_set1_epi32(static_cast<int>(0xFFFF0000u));
    int e = first;
    for (; e + 4 <= count; e += 4) {
      __m128i token[4];
      for (int i = 0; i < 4; ++i) {
        __m128i const raw = _mm_loadu_si128(reinterpret_cast<__m128i const*>(from + (e + i) * step));
        __m128i const zero = _mm_cmpeq_epi16(raw, _mm_setzero_si128());
        token[i] = _mm_or_si128(raw, _mm_slli_epi16(zero, 15));
      }
      __m128i const low = _mm_unpacklo_epi32(token[0], token[1]), high = _mm_unpackhi_epi32(token[0], token[1]);
      __m128i const next_low = _mm_unpacklo_epi32(token[2], token[3]);
      __m128i const next_high = _mm_unpackhi_epi32(token[2], token[3]);
      __m128i const pairs[4] = {_mm_unpacklo_epi64(low, next_low), _mm_unpackhi_epi64(low, next_low),
                                _mm_unpacklo_epi64(high, next_high), _mm_unpackhi_epi64(high, next_high)};
      for (int p = 0; p < 4; ++p) {
        _mm_storeu_ps(to[2 * p] + e, _mm_castsi128_ps(_mm_slli_epi32(pairs[p], 16)));
        _mm_storeu_ps(to[2 * p + 1] + e, _mm_castsi128_ps(_mm_and_si128(pairs[p], odd)));
      }
    }
    return e;
  }
#endif
};

#if defined(__x86_64__)

struct avx512_number_tiles {
  /// Reads tokens e, e + 4, e + 8 and e + 12.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void read(std::byte const* from, std::int64_t step,
                                                                               __m512i& to) {
    to = _mm512_maskz_broadcast_i32x4(0x000F, _mm_loadu_si128(reinterpret_cast<__m128i const*>(from)));
    for (int i = 1; i < 4; ++i) {
      auto const quarter = static_cast<__mmask16>(0x000F << 4 * i);
      auto const* const at = reinterpret_cast<__m128i const*>(from + 4 * i * step);
      to = _mm512_mask_broadcast_i32x4(to, quarter, _mm_loadu_si128(at));
    }
    to = _mm512_mask_blend_epi16(_mm512_testn_epi16_mask(to, to), to, _mm512_set1_epi32(-0x7FFF8000));
  }

  /// Turns sixteen tokens at a time: four of them in each quarter of a vector.
  [[gnu::target(KVPOLICY_AVX512)]] static int turn(std::byte const* from, std::int64_t step, int count,
                                                   float* const* to) {
    constexpr __mmask16 all = 0xFFFF;
    constexpr __mmask8 both = 0xFF;
    __m512i const odd = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
    int e = 0;
    for (; e + 16 <= count; e += 16) {
      __m512i token[4];
      for (int i = 0; i < 4; ++i) read(from + (e + i) * step, step, token[i]);
      __m512i const low = _mm512_maskz_unpacklo_epi32(all, token[0], token[1]);
      __m512i const high = _mm512_maskz_unpackhi_epi32(all, token[0], token[1]);
      __m512i const next_low = _mm512_maskz_unpacklo_epi32(all, token[2], token[3]);
      __m512i const next_high = _mm512_maskz_unpackhi_epi32(all, token[2], token[3]);
      __m512i const pairs[4] = {
          _mm512_maskz_unpacklo_epi64(both, low, next_low), _mm512_maskz_unpackhi_epi64(both, low, next_low),
          _mm512_maskz_unpacklo_epi64(both, high, next_high), _mm512_maskz_unpackhi_epi64(both, high, next_high)};
      for (int p = 0; p < 4; ++p) {
        _mm512_storeu_si512(to[2 * p] + e, _mm512_maskz_slli_epi32(all, pairs[p], 16));
        _mm512_storeu_si512(to[2 * p + 1] + e, _mm512_and_si512(pairs[p], odd));
      }
    }
    return portable_number_tiles::turn_fours(from, step, e, count, to);
  }
};

#endif

/// The code for an executor's instruction set.
[[nodiscard]] inline turn_numbers number_tiles_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_number_tiles::turn;
#endif
  static_cast<void>(simd_level);
  return portable_number_tiles::turn;
}

}  // namespace KVPOLICY_NAMESPACE::detail
