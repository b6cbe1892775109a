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

/// Stores eight integers, of which the selected ones come first, in order.
[[gnu::target(KVPOLICY_AVX2)]] inline void put_selected(__m256i some, unsigned which, void* to) {
  __m256i const order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(places.of[which])));
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(some, order));
}

#endif

}  // namespace KVPOLICY_NAMESPACE::detail
