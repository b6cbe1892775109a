// The gaps of a keep list in which few entries are missing, for each instruction set.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::detail {

/// True if so few of a lane's entries are dropped that a look at the gaps takes less time than one at each entry.
[[nodiscard]] constexpr bool drops_few(std::size_t kept, int committed) {
  return (committed - static_cast<int>(kept)) * std::int64_t{16} <= committed;
}

/// Lists the ordinals from `begin` to `end`, without the latter.
inline int* list_between(int begin, int end, int* to) {
  for (int e = begin; e < end; ++e) *to++ = e;
  return to;
}

/// Code for any compiler and processor: sixteen ordinals without a gap are passed over at once.
inline void list_gaps_portable(std::span<int const> kept, int committed, int* to) {
  constexpr std::size_t some = 16;
  int next = 0;  // the first ordinal that was not looked at
  for (std::size_t i = 0; i < kept.size();) {
    if (kept[i] == next && i + some <= kept.size() && kept[i + some - 1] == next + int{some} - 1) {
      next += int{some};
      i += some;
    } else {
      to = list_between(next, kept[i], to);
      next = kept[i++] + 1;
    }
  }
  list_between(next, committed, to);
}

#if defined(__x86_64__)
/// Thirty-two ordinals at a time are compared with the ones before them.
[[gnu::target(KVPOLICY_AVX2)]] inline void list_gaps_avx2(std::span<int const> kept, int committed, int* to) {
  constexpr std::size_t some = 32;
  int const* const entry = kept.data();
  if (kept.empty()) return void(list_between(0, committed, to));
  to = list_between(0, entry[0], to);
  std::size_t i = 1;
  for (; i + some <= kept.size(); i += some) {
    std::uint32_t follows = 0;
    prefetch_stream(entry + i), prefetch_stream(entry + i + some / 2);
    for (std::size_t at = 0; at < some; at += 8) {
      __m256i const here = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(entry + i + at));
      __m256i const before = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(entry + i + at - 1));
      __m256i const same = _mm256_cmpeq_epi32(here, _mm256_add_epi32(before, _mm256_set1_epi32(1)));
      follows |= static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(same))) << at;
    }
    for (std::uint32_t gaps = ~follows; gaps != 0; gaps &= gaps - 1) {
      std::size_t const after = i + static_cast<std::size_t>(std::countr_zero(gaps));
      to = list_between(entry[after - 1] + 1, entry[after], to);
    }
  }
  for (; i < kept.size(); ++i) to = list_between(entry[i - 1] + 1, entry[i], to);
  list_between(entry[kept.size() - 1] + 1, committed, to);
}
#endif

/// Lists the ordinals below `committed` that are not kept, in ascending order. `to` has memory for just these.
inline void list_gaps(isa simd_level, std::span<int const> kept, int committed, int* to) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx2) return list_gaps_avx2(kept, committed, to);
#endif
  static_cast<void>(simd_level);
  list_gaps_portable(kept, committed, to);
}

}  // namespace KVPOLICY_NAMESPACE::detail
