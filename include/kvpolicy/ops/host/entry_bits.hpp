// One bit for each entry of a segment.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
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

}  // namespace KVPOLICY_NAMESPACE::detail
