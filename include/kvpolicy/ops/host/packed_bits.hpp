// Selected elements of a vector of eight, packed to its front by a permutation from a table.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

#if defined(__x86_64__)

/// For each 8-bit mask: the indices of its set bits, in ascending order, one byte each.
struct places_of_bits {
  std::uint64_t of[256] = {};
  constexpr places_of_bits() {
    for (unsigned bits = 0; bits < 256; ++bits) {
      int next = 0;
      for (unsigned place = 0; place < 8; ++place) {
        if ((bits >> place & 1u) != 0) of[bits] |= static_cast<std::uint64_t>(place) << (8 * next++);
      }
    }
  }
};
inline constexpr places_of_bits places{};

/// For each 8-bit mask: how many bits below each place are set, one byte each.
struct ranks_of_bits {
  std::uint64_t of[256] = {};
  constexpr ranks_of_bits() {
    for (unsigned bits = 0; bits < 256; ++bits) {
      std::uint64_t below = 0;
      for (unsigned place = 0; place < 8; ++place) {
        of[bits] |= below << (8 * place);
        below += bits >> place & 1u;
      }
    }
  }
};
inline constexpr ranks_of_bits ranks{};

/// Eight integers, of which the selected ones come first, in order.
[[gnu::target(KVPOLICY_AVX2)]] inline __m256i selected_first(__m256i some, unsigned which) {
  __m256i const order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(places.of[which])));
  return _mm256_permutevar8x32_epi32(some, order);
}

/// Stores eight integers, of which the selected ones come first, in order.
[[gnu::target(KVPOLICY_AVX2)]] inline void put_selected(__m256i some, unsigned which, void* to) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), selected_first(some, which));
}

/// Stores the selected ones of eight integers, `more` of them, in order, and nothing behind them unless there is room
/// for eight.
[[gnu::target(KVPOLICY_AVX2)]] inline void put_selected(__m256i some, unsigned which, int more, bool room, int* to) {
  if (room || more == 8) return put_selected(some, which, to);
  __m256i const packed = selected_first(some, which);
  __m128i part = _mm256_castsi256_si128(packed);
  if ((more & 4) != 0) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), part);
    part = _mm256_extracti128_si256(packed, 1);
    to += 4;
  }
  if ((more & 2) != 0) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), part);
    part = _mm_srli_si128(part, 8);
    to += 2;
  }
  if ((more & 1) != 0) *to = _mm_cvtsi128_si32(part);
}

/// All bits of the first `count` of eight numbers.
[[gnu::target(KVPOLICY_AVX2)]] inline __m256i first_of_eight(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

#endif

}  // namespace KVPOLICY_NAMESPACE::detail
