// Lists the ordinals of marked entries, for each instruction set.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kept_gaps.hpp>
#include <kvpolicy/ops/host/packed_bits.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::detail {

/// Writes the ordinals whose mark is 1 (not 0) to `to`, in ascending order, and returns their number. There are `count`
/// marks. `to` may be the memory of the marks, if they are its last bytes and it has an int for each of them: an
/// ordinal never overwrites a mark that is still to be read.
using list_marked_function = int (*)(unsigned char const* marks, int count, int* to);

/// Code for any compiler and processor. There is no branch for a mark, because marks are unpredictable.
inline int list_marked_portable(unsigned char const* marks, int count, int* to) {
  int listed = 0;
  for (int e = 0; e < count; ++e) {
    int const more = marks[e];
    if (listed < count) to[listed] = e;
    listed += more;
  }
  return listed;
}

#if defined(__x86_64__)

struct avx2_marks {
  [[gnu::target(KVPOLICY_AVX2)]] static int list(unsigned char const* marks, int count, int* to) {
    __m256i ordinals = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    int listed = 0;
    int e = 0;
    for (; e + 32 <= count; e += 32) {
      __m256i const some = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(marks + e));
      __m256i const none = _mm256_cmpeq_epi8(some, _mm256_setzero_si256());
      auto marked = ~static_cast<std::uint32_t>(_mm256_movemask_epi8(none));
      for (int i = 0; i < 32; i += 8, marked >>= 8) {
        unsigned const here = marked & 0xFFu;
        int const more = __builtin_popcount(here);
        // A whole vector is written where all of its places belong to entries that were read before.
        put_selected(ordinals, here, more, listed + 8 <= e + i, to + listed);
        listed += more;
        ordinals = _mm256_add_epi32(ordinals, _mm256_set1_epi32(8));
      }
    }
    for (; e < count; ++e) {
      bool const is_marked = marks[e] != 0;
      if (is_marked) to[listed] = e;
      listed += is_marked ? 1 : 0;
    }
    return listed;
  }
};

struct avx512_marks {
  static constexpr __mmask16 all = 0xFFFF;  ///< without a mask, g++ 12 warns inside its own header

  [[gnu::target(KVPOLICY_AVX512)]] static int list(unsigned char const* marks, int count, int* to) {
    __m512i ordinals = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int listed = 0;
    for (int e = 0; e < count; e += 64) {
      __mmask64 const there = count - e < 64 ? (__mmask64{1} << (count - e)) - 1 : ~__mmask64{0};
      __m512i const some = _mm512_maskz_loadu_epi8(there, marks + e);
      std::uint64_t marked = _mm512_test_epi8_mask(some, some);
      for (int i = 0; i < 4; ++i, marked >>= 16) {
        auto const here = static_cast<__mmask16>(marked);
        __m512i const packed = _mm512_maskz_compress_epi32(here, ordinals);
        int const more = __builtin_popcount(here);
        // A whole vector is written where all of its places belong to entries that were read before.
        auto const written =
            static_cast<__mmask16>(listed + 16 <= e + 16 * i && listed + 16 <= count ? all : (1u << more) - 1);
        _mm512_mask_storeu_epi32(to + listed, written, packed);
        listed += more;
        ordinals = _mm512_add_epi32(ordinals, _mm512_set1_epi32(16));
      }
    }
    return listed;
  }
};

#endif

[[nodiscard]] inline list_marked_function list_marked_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_marks::list;
  if (simd_level >= isa::avx2) return avx2_marks::list;
#endif
  static_cast<void>(simd_level);
  return list_marked_portable;
}

/// Writes the marks of some entries, which ascend from entry `first` on: that of entry e is marks[e - first]. Sixteen
/// neighbours are marked at once.
inline void set_marks(std::span<int const> entries, int first, unsigned char mark, unsigned char* marks) {
  constexpr std::size_t some = 16;
  int const* const entry = entries.data();
  std::size_t const count = entries.size();
  std::size_t i = 0;
  for (; i + some <= count; i += some) {
    if (entry[i + some - 1] - entry[i] == int{some} - 1) {
      std::memset(marks + (entry[i] - first), mark, some);
    } else {
      for (std::size_t k = i; k < i + some; ++k) marks[entry[k] - first] = mark;
    }
  }
  for (; i < count; ++i) marks[entry[i] - first] = mark;
}

/// Lists the ordinals below `committed` that are not kept, in ascending order, and returns their number. `dropped` must
/// have one element more than that.
inline int list_dropped(isa simd_level, std::span<int const> kept, int committed, int* dropped) {
  if (drops_few(kept.size(), committed)) {
    list_gaps(simd_level, kept, committed, dropped);
    return committed - static_cast<int>(kept.size());
  }
  auto const count = static_cast<std::size_t>(committed);
  auto* const marks = reinterpret_cast<unsigned char*>(dropped) + 3 * count;
  std::memset(marks, 1, count);
  set_marks(kept, 0, 0, marks);
  return list_marked_for(simd_level)(marks, committed, dropped);
}

}  // namespace KVPOLICY_NAMESPACE::detail
