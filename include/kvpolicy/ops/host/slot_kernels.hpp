// Passes over lists of slots and their positions, for each instruction set.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/slot_kernels_avx2.hpp>
#include <kvpolicy/ops/host/slot_passes.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

#if defined(__x86_64__)

struct avx512_slots {
  static constexpr __mmask16 all = 0xFFFF;

  [[gnu::target(KVPOLICY_AVX512)]] static __mmask16 first(int count) {
    return count >= 16 ? all : static_cast<__mmask16>((1u << count) - 1);
  }

  /// Which of up to 16 entries are marked.
  [[gnu::target(KVPOLICY_AVX512)]] static __mmask16 marked(unsigned char const* marks, __mmask16 there) {
    __m128i const some = _mm_maskz_loadu_epi8(there, marks);
    return _mm_test_epi8_mask(some, some);
  }

  /// True if up to 16 positions count up from `begin`.
  [[gnu::target(KVPOLICY_AVX512)]] static bool is_run(__m512i positions, int begin, __mmask16 there) {
    __m512i const step = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i const run = _mm512_add_epi32(_mm512_set1_epi32(begin), step);
    return _mm512_mask_cmpneq_epi32_mask(there, positions, run) == 0;
  }

  [[gnu::target(KVPOLICY_AVX512)]] static bool inside(int const* numbers, int count, unsigned end, int excluded) {
    __m512i const limit = _mm512_set1_epi32(static_cast<int>(end));
    __m512i const other = _mm512_set1_epi32(excluded);
    unsigned wrong = 0;
    for (int e = 0; e < count; e += 16) {
      __mmask16 const there = first(count - e);
      __builtin_prefetch(numbers + e + slots_ahead);
      __m512i const some = _mm512_maskz_loadu_epi32(there, numbers + e);
      wrong |= _mm512_mask_cmpge_epu32_mask(there, some, limit);
      wrong |= _mm512_mask_cmpeq_epi32_mask(there, some, other);
    }
    return wrong == 0;
  }

  [[gnu::target(KVPOLICY_AVX512)]] static bool ascends(int const* numbers, int count) {
    unsigned wrong = count > 0 && numbers[0] < 0 ? 1 : 0;
    for (int e = 1; e < count; e += 16) {
      __mmask16 const there = first(count - e);
      __builtin_prefetch(numbers + e + slots_ahead);
      __m512i const before = _mm512_maskz_loadu_epi32(there, numbers + e - 1);
      wrong |= _mm512_mask_cmple_epi32_mask(there, _mm512_maskz_loadu_epi32(there, numbers + e), before);
    }
    return wrong == 0;
  }

// Without optimization g++ 12 has macros for these two, which convert the sign of masks.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
  /// The numbers at some places of a map; elsewhere those of `other`.
  [[gnu::target(KVPOLICY_AVX512)]] static __m512i gather(__m512i other, __mmask16 there, __m512i at, int const* map) {
    return _mm512_mask_i32gather_epi32(other, there, at, map, 4);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static __m512i gather_bytes(__mmask16 there, __m512i at,
                                                               unsigned char const* bytes) {
    return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), there, at, bytes, 1);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void scatter(int* map, __mmask16 there, __m512i at, __m512i numbers) {
    _mm512_mask_i32scatter_epi32(map, there, at, numbers, 4);
  }
#pragma GCC diagnostic pop

  [[gnu::target(KVPOLICY_AVX512)]] static bool as_mapped(int const* slot, int const* position, int count,
                                                         int const* map) {
    unsigned wrong = 0;
    for (int e = 0; e < count; e += 16) {
      __builtin_prefetch(position + e + slots_ahead);
      __builtin_prefetch(map + position[e] + slots_ahead);
      __mmask16 const there = first(count - e);
      __m512i const at = _mm512_maskz_loadu_epi32(there, position + e);
      __m512i const some = _mm512_maskz_loadu_epi32(there, slot + e);
      __m512i const mapped = is_run(at, position[e], there) ? _mm512_maskz_loadu_epi32(there, map + position[e])
                                                            : gather(some, there, at, map);
      wrong |= _mm512_mask_cmpneq_epi32_mask(there, some, mapped);
    }
    return wrong == 0;
  }

  [[gnu::target(KVPOLICY_AVX512)]] static std::int64_t count_set(unsigned char const* marks, std::int64_t count) {
    std::int64_t set = 0;
    for (std::int64_t i = 0; i < count; i += 64) {
      __mmask64 const there = count - i < 64 ? (__mmask64{1} << (count - i)) - 1 : ~__mmask64{0};
      __m512i const some = _mm512_maskz_loadu_epi8(there, marks + i);
      set += __builtin_popcountll(_mm512_test_epi8_mask(some, some));
    }
    return set;
  }

  [[gnu::target(KVPOLICY_AVX512)]] static bool any_set(unsigned char const* bytes, int const* units, int count) {
    __m512i set = _mm512_setzero_si512();
    for (int e = 0; e < count; e += 16) {
      __mmask16 const there = first(count - e);
      __m512i const at = _mm512_maskz_loadu_epi32(there, units + e);
      set = _mm512_or_si512(set, gather_bytes(there, at, bytes));
    }
    return _mm512_test_epi32_mask(set, _mm512_set1_epi32(0xFF)) != 0;
  }

  [[gnu::target(KVPOLICY_AVX512)]] static void put_packed(__m512i packed, int more, int at, int end, int* to) {
    if (at + 16 <= end) return _mm512_storeu_si512(to + at, packed);
    _mm512_mask_storeu_epi32(to + at, static_cast<__mmask16>((1u << more) - 1), packed);
  }

  /// Units are marked in turn with the splitting of a few vectors, which leaves the stores idle. The marked ones are
  /// those of vectors before them, which are not still on their way to the cache.
  [[gnu::target(KVPOLICY_AVX512)]] static void split(unsigned char const* marks, int count, int gone, int const* slot,
                                                     int* kept, int* dropped, unsigned char* units) {
    constexpr int group = 64;
    int taken = 0;
    int set = 0;
    for (int begin = 0; begin < count; begin += group) {
      int const before = begin - taken;
      for (int e = begin; e < std::min(begin + group, count); e += 16) {
        __builtin_prefetch(slot + e + 2 * slots_ahead, 0, 2);
        __builtin_prefetch(dropped + (e - taken) + 2 * slots_ahead, 0, 2);
        __mmask16 const there = first(count - e);
        __m512i const some = _mm512_maskz_loadu_epi32(there, slot + e);
        __mmask16 const stays = marked(marks + e, there);
        auto const goes = static_cast<__mmask16>(there & ~stays);
        int const more = __builtin_popcount(stays);
        // A whole vector in front only overwrites slots that were read.
        int const end = kept != nullptr ? std::min(e + 16, count - gone) : 0;
        if (kept != nullptr) put_packed(_mm512_maskz_compress_epi32(stays, some), more, taken, end, kept);
        put_packed(_mm512_maskz_compress_epi32(goes, some), __builtin_popcount(goes), e - taken, gone, dropped);
        taken += more;
      }
      for (; units != nullptr && set + 16 <= before; set += 16) {
        for (int i = 0; i < 16; ++i) units[dropped[set + i]] = 1;
      }
    }
    if (units != nullptr) mark_units(units, dropped + set, gone - set);
  }

  [[gnu::target(KVPOLICY_AVX512)]] static int take(unsigned char const* marks, int count, int dead, int* map, int room,
                                                   int* list) {
    __m512i const other = _mm512_set1_epi32(dead);
    int taken = 0;
    for (int p = 0; p < count; p += 16) {
      __builtin_prefetch(map + p + 2 * slots_ahead, 0, 2);
      __builtin_prefetch(list + taken + slots_ahead, 1);
      __mmask16 const there = first(count - p);
      __m512i const some = _mm512_maskz_loadu_epi32(there, map + p);
      __mmask16 const live = marked(marks + p, there);
      int const more = __builtin_popcount(live);
      put_packed(_mm512_maskz_compress_epi32(live, some), more, taken, room, list);
      _mm512_mask_storeu_epi32(map + p, static_cast<__mmask16>(there & ~live), other);
      taken += more;
    }
    return taken;
  }

  [[gnu::target(KVPOLICY_AVX512)]] static void redirect(unsigned char const* marks, int const* position, int count,
                                                        int dead, int* map) {
    __m512i const to = _mm512_set1_epi32(dead);
    for (int e = 0; e < count; e += 16) {
      __mmask16 const there = first(count - e);
      __builtin_prefetch(position + e + 2 * slots_ahead, 0, 2);
      __builtin_prefetch(map + position[e] + 2 * slots_ahead, 0, 2);
      __m512i const at = _mm512_maskz_loadu_epi32(there, position + e);
      auto const goes = static_cast<__mmask16>(there & ~marked(marks + e, there));
      if (is_run(at, position[e], there)) {
        _mm512_mask_storeu_epi32(map + position[e], goes, to);
      } else {
        scatter(map, goes, at, to);
      }
    }
  }

  static constexpr slot_kernels kernels{inside, ascends, as_mapped, count_set, any_set, split, take, redirect};
};

#endif

[[nodiscard]] inline slot_kernels const& slots_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_slots::kernels;
  if (simd_level >= isa::avx2) return avx2_slots::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_slots::kernels;
}

/// Bytes of scratch that may hold a mark for each unit of a pool: a row of ints. A larger pool has bits.
[[nodiscard]] inline std::size_t bytes_of_marks(cache const& in) {
  return sizeof(int) * (static_cast<std::size_t>(in.lanes.bound) + 1);
}

}  // namespace KVPOLICY_NAMESPACE::detail
