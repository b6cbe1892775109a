// Passes over lists of slots with vectors of eight integers.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <kvpolicy/ops/host/packed_bits.hpp>
#include <kvpolicy/ops/host/slot_passes.hpp>

namespace KVPOLICY_NAMESPACE::detail {

#if defined(__x86_64__)

/// Eight entries at a time; the last ones by the code for any processor.
struct avx2_slots {
  [[gnu::target(KVPOLICY_AVX2)]] static __m256i eight(int const* from) {
    return _mm256_loadu_si256(reinterpret_cast<__m256i const*>(from));
  }
  /// All bits of the entries that are marked.
  [[gnu::target(KVPOLICY_AVX2)]] static __m256i marked(unsigned char const* marks) {
    __m128i const some = _mm_loadl_epi64(reinterpret_cast<__m128i const*>(marks));
    return _mm256_cmpgt_epi32(_mm256_cvtepu8_epi32(some), _mm256_setzero_si256());
  }
  [[gnu::target(KVPOLICY_AVX2)]] static unsigned bits_of(__m256i mask) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(mask)));
  }
  [[gnu::target(KVPOLICY_AVX2)]] static bool all_zero(__m256i of) { return _mm256_testz_si256(of, of) != 0; }

  [[gnu::target(KVPOLICY_AVX2)]] static bool inside(int const* numbers, int count, unsigned end, int excluded) {
    __m256i const last = _mm256_set1_epi32(static_cast<int>(end - 1));
    __m256i const other = _mm256_set1_epi32(excluded);
    __m256i wrong = _mm256_setzero_si256();
    int e = 0;
    for (; end > 0 && e + 8 <= count; e += 8) {
      __builtin_prefetch(numbers + e + slots_ahead);
      __m256i const some = eight(numbers + e);
      __m256i const within = _mm256_cmpeq_epi32(_mm256_min_epu32(some, last), some);
      wrong = _mm256_or_si256(wrong, _mm256_andnot_si256(within, _mm256_set1_epi32(-1)));
      wrong = _mm256_or_si256(wrong, _mm256_cmpeq_epi32(some, other));
    }
    return all_zero(wrong) && portable_slots::inside(numbers + e, count - e, end, excluded);
  }

  [[gnu::target(KVPOLICY_AVX2)]] static bool ascends(int const* numbers, int count) {
    if (count > 0 && numbers[0] < 0) return false;
    __m256i wrong = _mm256_setzero_si256();
    int e = 1;
    for (; e + 8 <= count; e += 8) {
      __builtin_prefetch(numbers + e + slots_ahead);
      __m256i const above = _mm256_cmpgt_epi32(eight(numbers + e), eight(numbers + e - 1));
      wrong = _mm256_or_si256(wrong, _mm256_andnot_si256(above, _mm256_set1_epi32(-1)));
    }
    return all_zero(wrong) && (e >= count || portable_slots::ascends(numbers + e - 1, count - e + 1));
  }

  /// Eight positions that count up are a whole load of the map.
  [[gnu::target(KVPOLICY_AVX2)]] static bool as_mapped(int const* slot, int const* position, int count,
                                                       int const* map) {
    __m256i const step = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i wrong = _mm256_setzero_si256();
    int e = 0;
    for (; e + 8 <= count; e += 8) {
      __builtin_prefetch(position + e + slots_ahead);
      __builtin_prefetch(map + position[e] + slots_ahead);
      __m256i const run = _mm256_add_epi32(_mm256_set1_epi32(position[e]), step);
      __m256i const at = eight(position + e);
      bool const is_run = all_zero(_mm256_xor_si256(run, at));
      __m256i const mapped = is_run ? eight(map + position[e]) : _mm256_i32gather_epi32(map, at, 4);
      wrong = _mm256_or_si256(wrong, _mm256_xor_si256(eight(slot + e), mapped));
    }
    return all_zero(wrong) && portable_slots::as_mapped(slot + e, position + e, count - e, map);
  }

  [[gnu::target(KVPOLICY_AVX2)]] static bool any_set(unsigned char const* bytes, int const* units, int count) {
    __m256i set = _mm256_setzero_si256();
    int e = 0;
    for (; e + 8 <= count; e += 8) {
      __m256i const found = _mm256_i32gather_epi32(reinterpret_cast<int const*>(bytes), eight(units + e), 1);
      set = _mm256_or_si256(set, found);
    }
    bool const none = all_zero(_mm256_and_si256(set, _mm256_set1_epi32(0xFF)));
    return !none || portable_slots::any_set(bytes, units + e, count - e);
  }

  /// Stores the selected ones of eight numbers, `more` of them, in `to` from place `at` on, and nothing at `end` or
  /// behind it.
  [[gnu::target(KVPOLICY_AVX2)]] static void put(__m256i some, unsigned which, int more, int at, int end, int* to) {
    put_selected(some, which, more, at + 8 <= end, to + at);
  }

  [[gnu::target(KVPOLICY_AVX2)]] static void split(unsigned char const* marks, int count, int gone, int const* slot,
                                                   int* kept, int* dropped, unsigned char* units) {
    int stay = 0;
    int e = 0;
    for (; e + 8 <= count; e += 8) {
      __builtin_prefetch(slot + e + slots_ahead, 0, 2);
      __m256i const some = eight(slot + e);
      unsigned const stays = bits_of(marked(marks + e));
      int const more = __builtin_popcount(stays);
      // Eight in front only overwrite slots that were read.
      if (kept != nullptr) put(some, stays, more, stay, std::min(e + 8, count - gone), kept);
      put(some, ~stays & 0xFFu, 8 - more, e - stay, gone, dropped);
      stay += more;
    }
    for (; e < count; ++e) {
      if (marks[e] != 0) {
        if (kept != nullptr) kept[stay] = slot[e];
        ++stay;
      } else {
        dropped[e - stay] = slot[e];
      }
    }
    if (units != nullptr) mark_units(units, dropped, gone);
  }

  [[gnu::target(KVPOLICY_AVX2)]] static int take(unsigned char const* marks, int count, int dead, int* map, int room,
                                                 int* list) {
    __m256i const other = _mm256_set1_epi32(dead);
    int taken = 0;
    int p = 0;
    for (; p + 8 <= count; p += 8) {
      __builtin_prefetch(map + p + slots_ahead, 1, 2);
      __m256i const some = eight(map + p);
      __m256i const live = marked(marks + p);
      unsigned const which = bits_of(live);
      int const more = __builtin_popcount(which);
      put(some, which, more, taken, room, list);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(map + p), _mm256_blendv_epi8(other, some, live));
      taken += more;
    }
    return taken + portable_slots::take(marks + p, count - p, dead, map + p, room - taken, list + taken);
  }

  /// Positions that count up are written as a whole; there is no scattering store.
  [[gnu::target(KVPOLICY_AVX2)]] static void redirect(unsigned char const* marks, int const* position, int count,
                                                      int dead, int* map) {
    __m256i const step = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i const to = _mm256_set1_epi32(dead);
    int e = 0;
    for (; e + 8 <= count; e += 8) {
      __builtin_prefetch(position + e + slots_ahead, 0, 2);
      __builtin_prefetch(map + position[e] + slots_ahead, 1, 2);
      __m256i const run = _mm256_add_epi32(_mm256_set1_epi32(position[e]), step);
      if (all_zero(_mm256_xor_si256(run, eight(position + e)))) {
        auto* const at = reinterpret_cast<__m256i*>(map + position[e]);
        _mm256_storeu_si256(at, _mm256_blendv_epi8(to, _mm256_loadu_si256(at), marked(marks + e)));
      } else {
        portable_slots::redirect(marks + e, position + e, 8, dead, map);
      }
    }
    portable_slots::redirect(marks + e, position + e, count - e, dead, map);
  }

  static constexpr slot_kernels kernels{inside,  ascends, as_mapped, portable_slots::count_set,
                                        any_set, split,   take,      redirect};
};

#endif

}  // namespace KVPOLICY_NAMESPACE::detail
