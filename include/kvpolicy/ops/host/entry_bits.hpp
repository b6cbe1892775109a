// One bit for each entry of a segment: made of marks, and listed as ordinals, for each instruction set.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/packed_bits.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The words of 32 bits that hold a bit for each of `count` entries.
[[nodiscard]] constexpr int words_of_entries(int count) { return count / 32 + (count % 32 != 0 ? 1 : 0); }

/// The highest bits of 32 numbers, that of number 0 as the lowest bit of the result.
struct portable_signs {
  static std::uint32_t of(int const* numbers) {
    std::uint32_t signs = 0;
    for (int i = 0; i < 32; ++i) signs |= static_cast<std::uint32_t>(numbers[i]) >> 31 << i;
    return signs;
  }
};

#if defined(__x86_64__)
struct avx2_signs {
  [[gnu::target("avx2")]] static std::uint32_t of(int const* numbers) {
    std::uint32_t signs = 0;
    for (int i = 0; i < 32; i += 8) {
      __m256 const some = _mm256_loadu_ps(reinterpret_cast<float const*>(numbers + i));
      signs |= static_cast<std::uint32_t>(_mm256_movemask_ps(some)) << i;
    }
    return signs;
  }
};
#endif

/// Writes the number of each set bit among the first `count`, in ascending order. Exactly `listed` bits are set, and
/// nothing is written behind so many ordinals. A bit is read before the ordinal of an entry from 32 on behind it is
/// written.
using list_bits_function = void (*)(std::uint32_t const* bits, int count, int listed, int* to);

/// Code for any compiler and processor.
inline void list_bits_portable(std::uint32_t const* bits, int count, int listed, int* to) {
  int at = 0;
  for (int e = 0; e < count && at < listed; e += 32) {
    for (std::uint32_t some = bits[e / 32]; some != 0; some &= some - 1) to[at++] = e + __builtin_ctz(some);
  }
}

#if defined(__x86_64__)

struct avx2_bits {
  [[gnu::target(KVPOLICY_AVX2)]] static void list(std::uint32_t const* bits, int count, int listed, int* to) {
    __m256i ordinals = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    int at = 0;
    for (int e = 0; e < count && at < listed; e += 32) {
      std::uint32_t some = bits[e / 32];
      for (int eight = 0; eight < 4; ++eight, some >>= 8) {
        unsigned const here = some & 0xFFu;
        int const more = __builtin_popcount(here);
        put_selected(ordinals, here, more, at + 8 <= listed, to + at);
        at += more;
        ordinals = _mm256_add_epi32(ordinals, _mm256_set1_epi32(8));
      }
    }
  }
};

struct avx512_bits {
  [[gnu::target(KVPOLICY_AVX512)]] static void list(std::uint32_t const* bits, int count, int listed, int* to) {
    __m512i ordinals = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int at = 0;
    for (int e = 0; e < count && at < listed; e += 32) {
      std::uint32_t some = bits[e / 32];
      for (int half = 0; half < 2; ++half, some >>= 16) {
        auto const here = static_cast<__mmask16>(some);
        __m512i const packed = _mm512_maskz_compress_epi32(here, ordinals);
        int const more = __builtin_popcount(here);
        if (at + 16 <= listed) {
          _mm512_storeu_si512(to + at, packed);
        } else {
          _mm512_mask_storeu_epi32(to + at, static_cast<__mmask16>((1u << more) - 1), packed);
        }
        at += more;
        ordinals = _mm512_add_epi32(ordinals, _mm512_set1_epi32(16));
      }
    }
  }
};

#endif

[[nodiscard]] inline list_bits_function list_bits_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_bits::list;
  if (simd_level >= isa::avx2) return avx2_bits::list;
#endif
  static_cast<void>(simd_level);
  return list_bits_portable;
}

}  // namespace KVPOLICY_NAMESPACE::detail
