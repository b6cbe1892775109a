// Numbers of eight neighbouring heads, token by token, that are turned into eight columns, for each instruction set.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int heads_of_a_tile = 8;

/// Functions that write the numbers of whole tiles of tokens as floats, a zero as -0: to[head][token]. The numbers of a
/// token are contiguous, and tokens are `step` bytes apart. A function returns how many of the `count` tokens it has
/// written, from the first on.
struct number_tiles {
  using function = int (*)(std::byte const* from, std::int64_t step, int count, float* const* to);
  function f32 = nullptr;
  function bf16 = nullptr;

  /// Null for elements without such code.
  [[nodiscard]] function of(codec element) const {
    return element == codec::f32 ? f32 : element == codec::bf16 ? bf16 : nullptr;
  }
};

/// Prefetches the numbers of `count` tokens that are `step` bytes apart, from a place `bytes_ahead` behind `from` on.
[[gnu::always_inline]] inline void prefetch_tokens(std::byte const* from, std::int64_t step, int count) {
  std::int64_t const tokens_of_a_line = step > 0 && step < 64 ? 64 / step : 1;
  for (std::int64_t i = 0; i < count; i += tokens_of_a_line) prefetch_stream(from + i * step);
}

/// Code for any processor: that of x86-64 turns four tokens at a time, and other code leaves all of them to its caller.
struct portable_number_tiles {
  static int f32([[maybe_unused]] std::byte const* from, [[maybe_unused]] std::int64_t step, [[maybe_unused]] int count,
                 [[maybe_unused]] float* const* to) {
#if defined(__x86_64__)
    return turn_four_floats(from, step, 0, count, to);
#else
    return 0;
#endif
  }
  static int bf16([[maybe_unused]] std::byte const* from, [[maybe_unused]] std::int64_t step,
                  [[maybe_unused]] int count, [[maybe_unused]] float* const* to) {
#if defined(__x86_64__)
    return turn_fours(from, step, 0, count, to);
#else
    return 0;
#endif
  }
  static constexpr number_tiles kernels{f32, bf16};

#if defined(__x86_64__)
  /// Turns four tokens at a time, from `first` on. A word of four bytes has two heads.
  static int turn_fours(std::byte const* from, std::int64_t step, int first, int count, float* const* to) {
    __m128i const odd = _mm_set1_epi32(static_cast<int>(0xFFFF0000u));
    int e = first;
    for (; e + 4 <= count; e += 4) {
      prefetch_tokens(from + e * step, step, 4);
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

  /// Does the same with floats. Four heads are turned at a time.
  static int turn_four_floats(std::byte const* from, std::int64_t step, int first, int count, float* const* to) {
    int e = first;
    for (; e + 4 <= count; e += 4) {
      prefetch_tokens(from + e * step, step, 4);
      for (int h = 0; h < heads_of_a_tile; h += 4) {
        __m128 token[4];
        for (int i = 0; i < 4; ++i) {
          __m128 const raw = _mm_loadu_ps(reinterpret_cast<float const*>(from + (e + i) * step) + h);
          __m128 const zero = _mm_cmpeq_ps(raw, _mm_setzero_ps());
          token[i] = _mm_or_ps(raw, _mm_and_ps(zero, _mm_set1_ps(-0.0f)));
        }
        _MM_TRANSPOSE4_PS(token[0], token[1], token[2], token[3]);
        for (int i = 0; i < 4; ++i) _mm_storeu_ps(to[h + i] + e, token[i]);
      }
    }
    return e;
  }
#endif
};

#if defined(__x86_64__)

struct avx512_number_tiles {
  /// Reads sixteen bytes of each of tokens e, e + 4, e + 8 and e + 12.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void read(std::byte const* from, std::int64_t step,
                                                                               __m512i& to) {
    to = _mm512_maskz_broadcast_i32x4(0x000F, _mm_loadu_si128(reinterpret_cast<__m128i const*>(from)));
    for (int i = 1; i < 4; ++i) {
      auto const quarter = static_cast<__mmask16>(0x000F << 4 * i);
      auto const* const at = reinterpret_cast<__m128i const*>(from + 4 * i * step);
      to = _mm512_mask_broadcast_i32x4(to, quarter, _mm_loadu_si128(at));
    }
  }

  /// Turns the words of four vectors: each quarter of them is turned by itself.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void turn_words(__m512i* words) {
    constexpr __mmask16 all = 0xFFFF;
    constexpr __mmask8 both = 0xFF;
    __m512i const low = _mm512_maskz_unpacklo_epi32(all, words[0], words[1]);
    __m512i const high = _mm512_maskz_unpackhi_epi32(all, words[0], words[1]);
    __m512i const next_low = _mm512_maskz_unpacklo_epi32(all, words[2], words[3]);
    __m512i const next_high = _mm512_maskz_unpackhi_epi32(all, words[2], words[3]);
    words[0] = _mm512_maskz_unpacklo_epi64(both, low, next_low);
    words[1] = _mm512_maskz_unpackhi_epi64(both, low, next_low);
    words[2] = _mm512_maskz_unpacklo_epi64(both, high, next_high);
    words[3] = _mm512_maskz_unpackhi_epi64(both, high, next_high);
  }

  /// Turns sixteen tokens at a time: four of them in each quarter of a vector.
  [[gnu::target(KVPOLICY_AVX512)]] static int bf16(std::byte const* from, std::int64_t step, int count,
                                                   float* const* to) {
    __m512i const odd = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)), zeros = _mm512_set1_epi32(-0x7FFF8000);
    int e = 0;
    for (; e + 16 <= count; e += 16) {
      prefetch_tokens(from + e * step, step, 16);
      __m512i pairs[4];
      for (int i = 0; i < 4; ++i) {
        read(from + (e + i) * step, step, pairs[i]);
        pairs[i] = _mm512_mask_blend_epi16(_mm512_testn_epi16_mask(pairs[i], pairs[i]), pairs[i], zeros);
      }
      turn_words(pairs);
      for (int p = 0; p < 4; ++p) {
        _mm512_storeu_si512(to[2 * p] + e, _mm512_maskz_slli_epi32(0xFFFF, pairs[p], 16));
        _mm512_storeu_si512(to[2 * p + 1] + e, _mm512_and_si512(pairs[p], odd));
      }
    }
    return portable_number_tiles::turn_fours(from, step, e, count, to);
  }

  [[gnu::target(KVPOLICY_AVX512)]] static int f32(std::byte const* from, std::int64_t step, int count,
                                                  float* const* to) {
    __m512i const zero = _mm512_set1_epi32(-0x7FFFFFFF - 1);
    int e = 0;
    for (; e + 16 <= count; e += 16) {
      prefetch_tokens(from + e * step, step, 16);
      for (int h = 0; h < heads_of_a_tile; h += 4) {
        __m512i heads[4];
        for (int i = 0; i < 4; ++i) {
          read(from + (e + i) * step + 4 * std::ptrdiff_t{h}, step, heads[i]);
          heads[i] = _mm512_mask_blend_epi32(_mm512_testn_epi32_mask(heads[i], heads[i]), heads[i], zero);
        }
        turn_words(heads);
        for (int i = 0; i < 4; ++i) _mm512_storeu_si512(to[h + i] + e, heads[i]);
      }
    }
    return portable_number_tiles::turn_four_floats(from, step, e, count, to);
  }
  static constexpr number_tiles kernels{f32, bf16};
};

#endif

/// The code for an executor's instruction set.
[[nodiscard]] inline number_tiles const& number_tiles_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_number_tiles::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_number_tiles::kernels;
}

}  // namespace KVPOLICY_NAMESPACE::detail
