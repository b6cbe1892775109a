// Host implementation of pool.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <kvpolicy/ops/pool.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

inline float pooled(pooling const& by, float const* scores, int count, int at) {
  int const reach = by.width / 2;
  int const first = std::max(0, at - reach);
  int const last = std::min(count - 1, at + reach);
  float value = scores[first];
  for (int e = first + 1; e <= last; ++e) {
    if (by.how == pooling::kind::avg) {
      value += scores[e];
    } else if (value == value && !(scores[e] <= value)) {  // higher, or NaN
      value = scores[e];
    }
  }
  return by.how == pooling::kind::avg ? value / static_cast<float>(by.width) : value;
}

/// Pools entries [begin, end), whose neighbours are all there, by whole vectors from `begin` on; returns where it
/// stopped. With AVX-512 the last vectors may pool some entries again, so that they end at `end`. Neighbours are taken
/// in the order in which `pooled` takes them, so results are the same bits.
struct pool_kernels {
  int (*maximum)(float const* scores, int width, int begin, int end, float* to) = nullptr;
  int (*mean)(float const* scores, int width, int begin, int end, float* to) = nullptr;
};

template <int Width>
struct pool_bodies {
  using floats = typename vector_of<Width>::floats;
  static constexpr int vectors = 4;

  [[gnu::always_inline]] static inline int mean(float const* scores, int width, int begin, int end, float* to) {
    int at = begin;
    for (; at + vectors * Width <= end; at += vectors * Width) {
      floats all[static_cast<std::size_t>(vectors)];
      float const* const first = scores + at - width / 2;
      for (int v = 0; v < vectors; ++v) get(all[v], first + v * Width);
      for (int n = 1; n < width; ++n) {
        for (int v = 0; v < vectors; ++v) {
          floats next;
          get(next, first + v * Width + n);
          all[v] += next;
        }
      }
      for (int v = 0; v < vectors; ++v) put(all[v] / static_cast<float>(width), to + at + v * Width);
    }
    return at;
  }
};

struct portable_pools {
  /// The caller pools what is left.
  static int maximum(float const*, int, int begin, int, float*) { return begin; }
  static int mean(float const* scores, int width, int begin, int end, float* to) {
    return pool_bodies<4>::mean(scores, width, begin, end, to);
  }
  static constexpr pool_kernels kernels{maximum, mean};
};

#if defined(__x86_64__)

struct avx2_pools {
  /// Without NaN, the instruction takes a higher number and keeps the first of equals. The vectors of
  /// neighbours that together hold every number show whether one is NaN; then `careful` does it.
  [[gnu::target(KVPOLICY_AVX2)]] static int maximum(float const* scores, int width, int begin, int end, float* to) {
    int at = begin;
    for (; at + 8 <= end; at += 8) {
      float const* const first = scores + at - width / 2;
      __m256 all = _mm256_loadu_ps(first);
      __m256 nan = _mm256_cmp_ps(all, all, _CMP_UNORD_Q);
      for (int n = 1; n < width; ++n) {
        __m256 const next = _mm256_loadu_ps(first + n);
        if (n % 8 == 0 || n + 1 == width) nan = _mm256_or_ps(nan, _mm256_cmp_ps(next, next, _CMP_UNORD_Q));
        all = _mm256_max_ps(next, all);
      }
      if (_mm256_movemask_ps(nan) != 0) careful(first, width, all);
      _mm256_storeu_ps(to + at, all);
    }
    return at;
  }
  /// A higher number is taken, and a NaN, which then stays.
  [[gnu::target(KVPOLICY_AVX2)]] static void careful(float const* first, int width, __m256& all) {
    all = _mm256_loadu_ps(first);
    for (int n = 1; n < width; ++n) {
      __m256 const next = _mm256_loadu_ps(first + n);
      __m256 const number = _mm256_cmp_ps(all, all, _CMP_ORD_Q);
      all = _mm256_blendv_ps(all, next, _mm256_and_ps(number, _mm256_cmp_ps(next, all, _CMP_NLE_UQ)));
    }
  }
  [[gnu::target(KVPOLICY_AVX2)]] static int mean(float const* scores, int width, int begin, int end, float* to) {
    return pool_bodies<8>::mean(scores, width, begin, end, to);
  }
  static constexpr pool_kernels kernels{maximum, mean};
};

struct avx512_pools {
  [[gnu::target(KVPOLICY_AVX512)]] static int maximum(float const* scores, int width, int begin, int end, float* to) {
    int at = begin;
    for (; at + 32 <= end; at += 32) highest(scores + at - width / 2, width, to + at);
    if (at == end || end - begin < 32) return at;
    highest(scores + end - 32 - width / 2, width, to + end - 32);
    return end;
  }
  /// See avx2_pools::maximum.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void highest(float const* first, int width,
                                                                                  float* to) {
    __m512 here[3], next[2];
    read<2>(first, width, here);
    __m512 a = here[0], b = here[1];
    __mmask16 nan = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
    for (int n = 1; n < width; ++n) {
      shift<2>(first, n, here, next);
      if (n % 16 == 0 || n + 1 == width) nan |= _mm512_cmp_ps_mask(next[1], next[1], _CMP_UNORD_Q);
      a = _mm512_maskz_max_ps(0xFFFF, next[0], a);
      b = _mm512_maskz_max_ps(0xFFFF, next[1], b);
    }
    if (nan != 0) careful(first, width, a, b);
    _mm512_storeu_ps(to, a);
    _mm512_storeu_ps(to + 16, b);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void careful(float const* first, int width, __m512& a, __m512& b) {
    a = _mm512_loadu_ps(first);
    b = _mm512_loadu_ps(first + 16);
    for (int n = 1; n < width; ++n) {
      take(a, _mm512_loadu_ps(first + n));
      take(b, _mm512_loadu_ps(first + n + 16));
    }
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void take(__m512& all, __m512 const& next) {
    __mmask16 const number = _mm512_cmp_ps_mask(all, all, _CMP_ORD_Q);
    all = _mm512_mask_mov_ps(all, _mm512_mask_cmp_ps_mask(number, next, all, _CMP_NLE_UQ), next);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static int mean(float const* scores, int width, int begin, int end, float* to) {
    constexpr int step = 64;
    int at = begin;
    for (; at + step <= end; at += step) means(scores + at - width / 2, width, to + at);
    if (at == end || end - begin < step) return at;
    means(scores + end - step - width / 2, width, to + end - step);
    return end;
  }
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void means(float const* first, int width,
                                                                                float* to) {
    __m512 here[5], all[4], next[4];
    read<4>(first, width, here);
    for (int v = 0; v < 4; ++v) all[v] = here[v];
    for (int n = 1; n < width; ++n) {
      shift<4>(first, n, here, next);
      for (int v = 0; v < 4; ++v) all[v] = _mm512_add_ps(all[v], next[v]);
    }
    for (int v = 0; v < 4; ++v) _mm512_storeu_ps(to + 16 * v, quotient(all[v], static_cast<float>(width)));
  }
  /// Reads `Vectors` vectors, and of the one after them what neighbours are.
  template <int Vectors>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void read(float const* first, int width,
                                                                               __m512* here) {
    for (int v = 0; v < Vectors; ++v) here[v] = _mm512_loadu_ps(first + 16 * v);
    auto const beyond = static_cast<__mmask16>(width > 16 ? 0xFFFF : (1u << (width - 1)) - 1);
    here[Vectors] = _mm512_maskz_loadu_ps(beyond, first + 16 * Vectors);
  }
  /// The numbers `n` after those of `here`. Half of them are shifted in registers, since a read that crosses a line
  /// takes as long as two.
  template <int Vectors>
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline void shift(float const* first, int n,
                                                                                __m512 const* here, __m512* next) {
    __m512i const order =
        _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(n));
    for (int v = 0; v < Vectors; ++v) {
      next[v] = n % 2 == 0 && n < 16 ? _mm512_permutex2var_ps(here[v], order, here[v + 1])
                                     : _mm512_loadu_ps(first + 16 * v + n);
    }
  }
  /// x / by, for an odd number `by`, in a quarter of the time of the instruction. The remainder of a quotient that is
  /// nearly right is exact, and rounds it: the exact quotient is at least 1 / (2 by) units in the last place from where
  /// rounding changes, and the sum that is rounded is wrong by 2^-23 of them. Infinities, NaN and -0 are divided.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512 quotient(__m512 x, float by) {
    constexpr int special = 0x9D;
    __m512 const divisor = _mm512_set1_ps(by), inverse = _mm512_set1_ps(1.0f / by);
    if (_mm512_fpclass_ps_mask(x, special) != 0 || by > 0x1p20f) return _mm512_div_ps(x, divisor);
    __m512 const nearly = _mm512_mul_ps(x, inverse);
    return _mm512_fmadd_ps(_mm512_fnmadd_ps(nearly, divisor, x), inverse, nearly);
  }
  static constexpr pool_kernels kernels{maximum, mean};
};

#endif

[[nodiscard]] inline pool_kernels const& pools_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_pools::kernels;
  if (simd_level == isa::avx2) return avx2_pools::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_pools::kernels;
}

/// Pools entries [begin, end) of `count` scores.
inline void pool_part(isa simd_level, pooling const& by, float const* scores, int count, int begin, int end,
                      float* to) {
  int const reach = std::min(by.width / 2, count);
  pool_kernels const& kernels = pools_for(simd_level);
  int e = begin;
  for (; e < std::min(reach, end); ++e) to[e] = pooled(by, scores, count, e);
  auto const inside = by.how == pooling::kind::avg ? kernels.mean : kernels.maximum;
  int const last = std::min(end, count - reach);
  if (last > e) e = inside(scores, by.width, e, last, to);
  for (; e < end; ++e) to[e] = pooled(by, scores, count, e);
}

/// Pools the first `count` scores of a row in place. A block of them and its neighbours are copied to `window` at a
/// time, so that they are in the first-level cache; `window` has `count` floats. Wide pools copy the whole row.
inline void pool_row(isa simd_level, pooling const& by, float* row, int count, float* window) {
  constexpr int most = 2048;
  int const reach = by.width / 2;
  int const block = reach > most / 8 || count < 2 * most ? std::max(count, 1) : most;
  int known = 0;  // entries below this one are in the window, or pooled
  for (int begin = 0; begin < count; begin += block) {
    int const end = std::min(count, begin + block);
    int const from = std::max(0, begin - reach);
    int const to = end + std::min(reach, count - end);
    int const carried = known - from;
    if (begin > 0) std::copy_n(window + (known - std::max(0, begin - block - reach)) - carried, carried, window);
    std::copy(row + known, row + to, window + carried);
    known = to;
    pool_part(simd_level, by, window, to - from, begin - from, end - from, row + from);
  }
}

}  // namespace detail

template <>
struct implementation<ops::pool_t, host> {
  static constexpr bool provided = true;

  static std::size_t scratch(shape const&, int bound) {
    return detail::scratch_of<float>(static_cast<std::size_t>(bound));
  }

  static void run(host_executor& exec, pooling const& by, score_view const& scores, int tail) {
    if (by.how == pooling::kind::none) return;
    exec.for_each(scores.segments(), [&](int segment, int worker) {
      int const count = std::max(0, scores.lanes.committed(scores.lane_of(segment)) - tail);
      float* const row = scores.row(segment);
      auto const window = detail::scratch_arena(exec.scratch(worker)).take<float>(static_cast<std::size_t>(count));
      detail::pool_row(exec.simd_level(), by, row, count, window);
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
