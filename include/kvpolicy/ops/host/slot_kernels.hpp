// Passes over lists of slots and their positions, for each instruction set.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// How far ahead a pass prefetches slots from memory: one memory page, because hardware prefetchers stop at its end.
inline constexpr int slots_ahead = 1024;

/// The passes over a list of `count` slots. A mark is a byte: 1 for a set one, 0 for another.
struct slot_kernels {
  /// True if every number is at least 0, less than `end`, and not `excluded`.
  bool (*inside)(int const* numbers, int count, unsigned end, int excluded);
  /// True if the map has each entry's slot at its position.
  bool (*as_mapped)(int const* slot, int const* position, int count, int const* map);
  /// The number of set marks.
  std::int64_t (*count_set)(unsigned char const* marks, std::int64_t count);
  /// Moves the slots of marked entries to the front, in order, and the `gone` others to `dropped`. Nothing is written
  /// behind them.
  void (*split)(unsigned char const* marks, int count, int gone, int* slot, int* dropped);
  /// Copies the slots at the marked ones of `count` positions of a map to `list`, which has room for `room` of them,
  /// and writes `dead` at the other positions. Returns the number of copied slots.
  int (*take)(unsigned char const* marks, int count, int dead, int* map, int room, int* list);
  /// Writes `dead` to the map at the positions of entries that are not marked.
  void (*redirect)(unsigned char const* marks, int const* position, int count, int dead, int* map);
};

/// Code for any compiler and processor. There is no branch for an entry.
struct portable_slots {
  KVPOLICY_VECTORIZED static bool inside(int const* numbers, int count, unsigned end, int excluded) {
    int wrong = 0;
    for (int e = 0; e < count; ++e) {
      wrong |= (static_cast<unsigned>(numbers[e]) >= end ? 1 : 0) | (numbers[e] == excluded ? 1 : 0);
    }
    return wrong == 0;
  }
  static bool as_mapped(int const* slot, int const* position, int count, int const* map) {
    int wrong = 0;
    for (int e = 0; e < count; ++e) wrong |= slot[e] ^ map[position[e]];
    return wrong == 0;
  }
  static std::int64_t count_set(unsigned char const* marks, std::int64_t count) {
    std::int64_t set = 0;
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      std::uint64_t some = 0;
      std::memcpy(&some, marks + i, sizeof some);
      set += static_cast<std::int64_t>(some * 0x0101010101010101u >> 56);
    }
    for (; i < count; ++i) set += marks[i];
    return set;
  }
  static void split(unsigned char const* marks, int count, int gone, int* slot, int* dropped) {
    int kept = 0;
    int left = 0;
    for (int e = 0; e < count; ++e) {
      int const one = slot[e];
      int const stays = marks[e];
      slot[kept] = one;
      if (left < gone) dropped[left] = one;
      kept += stays;
      left += 1 - stays;
    }
  }
  static int take(unsigned char const* marks, int count, int dead, int* map, int room, int* list) {
    int taken = 0;
    for (int p = 0; p < count; ++p) {
      int const one = map[p];
      if (taken < room) list[taken] = one;
      taken += marks[p];
      map[p] = marks[p] != 0 ? one : dead;
    }
    return taken;
  }
  static void redirect(unsigned char const* marks, int const* position, int count, int dead, int* map) {
    for (int e = 0; e < count; ++e) {
      int& at = map[position[e]];
      at = marks[e] != 0 ? at : dead;
    }
  }
  static constexpr slot_kernels kernels{inside, as_mapped, count_set, split, take, redirect};
};

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

// Without optimization g++ 12 has macros for these two, which convert the sign of masks.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
  /// The numbers at some places of a map; elsewhere those of `other`.
  [[gnu::target(KVPOLICY_AVX512)]] static __m512i gather(__m512i other, __mmask16 there, __m512i at, int const* map) {
    return _mm512_mask_i32gather_epi32(other, there, at, map, 4);
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

  [[gnu::target(KVPOLICY_AVX512)]] static void put_packed(__m512i packed, int more, int at, int end, int* to) {
    if (at + 16 <= end) return _mm512_storeu_si512(to + at, packed);
    _mm512_mask_storeu_epi32(to + at, static_cast<__mmask16>((1u << more) - 1), packed);
  }

  [[gnu::target(KVPOLICY_AVX512)]] static void split(unsigned char const* marks, int count, int gone, int* slot,
                                                     int* dropped) {
    int kept = 0;
    for (int e = 0; e < count; e += 16) {
      __builtin_prefetch(slot + e + slots_ahead, 1);
      __mmask16 const there = first(count - e);
      __m512i const some = _mm512_maskz_loadu_epi32(there, slot + e);
      __mmask16 const stays = marked(marks + e, there);
      auto const goes = static_cast<__mmask16>(there & ~stays);
      int const more = __builtin_popcount(stays);
      // A whole vector in front only overwrites slots that were read.
      put_packed(_mm512_maskz_compress_epi32(stays, some), more, kept, std::min(e + 16, count), slot);
      put_packed(_mm512_maskz_compress_epi32(goes, some), __builtin_popcount(goes), e - kept, gone, dropped);
      kept += more;
    }
  }

  [[gnu::target(KVPOLICY_AVX512)]] static int take(unsigned char const* marks, int count, int dead, int* map, int room,
                                                   int* list) {
    __m512i const other = _mm512_set1_epi32(dead);
    int taken = 0;
    for (int p = 0; p < count; p += 16) {
      __builtin_prefetch(map + p + slots_ahead, 1);
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
      __m512i const at = _mm512_maskz_loadu_epi32(there, position + e);
      auto const goes = static_cast<__mmask16>(there & ~marked(marks + e, there));
      if (is_run(at, position[e], there)) {
        _mm512_mask_storeu_epi32(map + position[e], goes, to);
      } else {
        scatter(map, goes, at, to);
      }
    }
  }

  static constexpr slot_kernels kernels{inside, as_mapped, count_set, split, take, redirect};
};

#endif

[[nodiscard]] inline slot_kernels const& slots_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_slots::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_slots::kernels;
}

/// Bytes of scratch that may hold a mark for each unit of a pool: a row of ints. A larger pool has bits.
[[nodiscard]] inline std::size_t bytes_of_marks(cache const& in) {
  return sizeof(int) * (static_cast<std::size_t>(in.lanes.bound) + 1);
}

/// Marks units. They must be in the pool.
inline void mark_units(unsigned char* marks, int const* units, int count) {
  int e = 0;
  for (; e + 16 <= count; e += 16) {
    __builtin_prefetch(units + e + slots_ahead);
    for (int i = 0; i < 16; ++i) marks[units[e + i]] = 1;
  }
  for (; e < count; ++e) marks[units[e]] = 1;
}

}  // namespace KVPOLICY_NAMESPACE::detail
