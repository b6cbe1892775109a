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
/// stopped. Neighbours are taken in the order in which `pooled` takes them, so results are the same bits.
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
      float const* const first = scores + at - width / 2;
      floats all[static_cast<std::size_t>(vectors)];
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
  /// See avx2_pools::maximum.
  [[gnu::target(KVPOLICY_AVX512)]] static int maximum(float const* scores, int width, int begin, int end, float* to) {
    int at = begin;
    for (; at + 32 <= end; at += 32) {
      float const* const first = scores + at - width / 2;
      __m512 a = _mm512_loadu_ps(first), b = _mm512_loadu_ps(first + 16);
      __mmask16 nan = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
      for (int n = 1; n < width; ++n) {
        __m512 const c = _mm512_loadu_ps(first + n), d = _mm512_loadu_ps(first + n + 16);
        if (n % 16 == 0 || n + 1 == width) nan |= _mm512_cmp_ps_mask(d, d, _CMP_UNORD_Q);
        a = _mm512_maskz_max_ps(0xFFFF, c, a);
        b = _mm512_maskz_max_ps(0xFFFF, d, b);
      }
      if (nan != 0) careful(first, width, a, b);
      _mm512_storeu_ps(to + at, a);
      _mm512_storeu_ps(to + at + 16, b);
    }
    return at;
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
    return pool_bodies<16>::mean(scores, width, begin, end, to);
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

/// Pools the first `count` scores.
inline void pool_row(isa simd_level, pooling const& by, float const* scores, int count, float* to) {
  int const reach = std::min(by.width / 2, count);
  pool_kernels const& kernels = pools_for(simd_level);
  int e = 0;
  for (; e < reach; ++e) to[e] = pooled(by, scores, count, e);
  auto const inside = by.how == pooling::kind::avg ? kernels.mean : kernels.maximum;
  if (count - reach > e) e = inside(scores, by.width, e, count - reach, to);
  for (; e < count; ++e) to[e] = pooled(by, scores, count, e);
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
      float* const before = detail::scratch_arena(exec.scratch(worker)).take<float>(static_cast<std::size_t>(count));
      std::copy_n(row, count, before);
      detail::pool_row(exec.simd_level(), by, before, count, row);
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
