// Host implementation of pool.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

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
  using ints = typename vector_of<Width>::ints;
  static constexpr int vectors = 4;

  /// value = next, if that is higher or NaN; a NaN stays.
  [[gnu::always_inline]] static inline void take_higher(floats& value, floats const& next) {
    ints const lower = next <= value;
    ints const number = value == value;
    ints const taken = number & ~lower;
    value = __builtin_bit_cast(floats,
                               (taken & __builtin_bit_cast(ints, next)) | (~taken & __builtin_bit_cast(ints, value)));
  }

  template <bool Mean>
  [[gnu::always_inline]] static inline int pool(float const* scores, int width, int begin, int end, float* to) {
    int at = begin;
    for (; at + vectors * Width <= end; at += vectors * Width) {
      float const* const first = scores + at - width / 2;
      floats all[static_cast<std::size_t>(vectors)];
      for (int v = 0; v < vectors; ++v) get(all[v], first + v * Width);
      for (int n = 1; n < width; ++n) {
        for (int v = 0; v < vectors; ++v) {
          floats next;
          get(next, first + v * Width + n);
          if constexpr (Mean) {
            all[v] += next;
          } else {
            take_higher(all[v], next);
          }
        }
      }
      for (int v = 0; v < vectors; ++v) put(Mean ? all[v] / static_cast<float>(width) : all[v], to + at + v * Width);
    }
    return at;
  }
};

struct portable_pools {
  static int maximum(float const* scores, int width, int begin, int end, float* to) {
    return pool_bodies<4>::pool<false>(scores, width, begin, end, to);
  }
  static int mean(float const* scores, int width, int begin, int end, float* to) {
    return pool_bodies<4>::pool<true>(scores, width, begin, end, to);
  }
  static constexpr pool_kernels kernels{maximum, mean};
};

#if defined(__x86_64__)

struct avx2_pools {
  [[gnu::target(KVPOLICY_AVX2)]] static int maximum(float const* scores, int width, int begin, int end, float* to) {
    return pool_bodies<8>::pool<false>(scores, width, begin, end, to);
  }
  [[gnu::target(KVPOLICY_AVX2)]] static int mean(float const* scores, int width, int begin, int end, float* to) {
    return pool_bodies<8>::pool<true>(scores, width, begin, end, to);
  }
  static constexpr pool_kernels kernels{maximum, mean};
};

struct avx512_pools {
  [[gnu::target(KVPOLICY_AVX512)]] static int maximum(float const* scores, int width, int begin, int end, float* to) {
    return pool_bodies<16>::pool<false>(scores, width, begin, end, to);
  }
  [[gnu::target(KVPOLICY_AVX512)]] static int mean(float const* scores, int width, int begin, int end, float* to) {
    return pool_bodies<16>::pool<true>(scores, width, begin, end, to);
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
