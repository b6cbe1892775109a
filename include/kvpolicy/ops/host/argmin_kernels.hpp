// Finds the last of the lowest scores of a row, for each instruction set.
#pragma once

#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Returns the index of the lowest of `count` >= 1 scores, and the last one of equal scores; NaN is below every number.
struct argmin_kernels {
  int (*last_lowest)(float const* scores, int count, std::int64_t* nan) = nullptr;
};

template <int Width>
struct argmin_bodies {
  using floats = typename vector_of<Width>::floats;
  using ints = typename vector_of<Width>::ints;
  static constexpr int chains = 2;

  [[gnu::always_inline]] static inline bool goes_before(float a, float b) { return a <= b || a != a; }

  [[gnu::always_inline]] static inline int last_lowest(float const* scores, int count, std::int64_t* nan) {
    int best = 0;
    int e = 1;
    std::int64_t nans = scores[0] != scores[0] ? 1 : 0;
    if (count >= chains * Width) {
      floats low[chains];
      ints at[chains];
      ints now[chains];
      ints unordered{};
      for (int c = 0; c < chains; ++c) {
        get(low[c], scores + c * Width);
        for (int i = 0; i < Width; ++i) now[c][i] = c * Width + i;
        at[c] = now[c];
        unordered |= low[c] != low[c];
      }
      for (e = chains * Width; e + chains * Width <= count; e += chains * Width) {
        for (int c = 0; c < chains; ++c) {
          floats value;
          get(value, scores + e + c * Width);
          now[c] += chains * Width;
          ints const take = value <= low[c];
          unordered |= value != value;
          low[c] = take ? value : low[c];
          at[c] = take ? now[c] : at[c];
        }
      }
      best = at[0][0];
      for (int c = 0; c < chains; ++c) {
        for (int i = 0; i < Width; ++i) {
          int const other = at[c][i];
          bool const before = low[c][i] < scores[best] || (low[c][i] == scores[best] && other > best);
          best = before ? other : best;
        }
      }
      bool any = false;
      for (int i = 0; i < Width; ++i) any = any || unordered[i] != 0;
      if (any) e = 1, best = 0;  // then continues one by one
      if (!any) nans = 0;
    }
    for (; e < count; ++e) {
      nans += scores[e] != scores[e] ? 1 : 0;
      bool const never = scores[best] != scores[best] && scores[e] == scores[e];
      best = !never && goes_before(scores[e], scores[best]) ? e : best;
    }
    *nan += nans;
    return best;
  }
};

/// Code for any compiler and processor.
struct portable_argmin {
  static int last_lowest(float const* scores, int count, std::int64_t* nan) {
    return argmin_bodies<4>::last_lowest(scores, count, nan);
  }
  static constexpr argmin_kernels kernels{last_lowest};
};

#if defined(__x86_64__)

struct avx2_argmin {
  [[gnu::target(KVPOLICY_AVX2)]] static int last_lowest(float const* scores, int count, std::int64_t* nan) {
    return argmin_bodies<8>::last_lowest(scores, count, nan);
  }
  static constexpr argmin_kernels kernels{last_lowest};
};

struct avx512_argmin {
  [[gnu::target(KVPOLICY_AVX512)]] static int last_lowest(float const* scores, int count, std::int64_t* nan) {
    return argmin_bodies<16>::last_lowest(scores, count, nan);
  }
  static constexpr argmin_kernels kernels{last_lowest};
};

#endif

/// The kernel for an executor's instruction set.
[[nodiscard]] inline argmin_kernels const& argmin_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_argmin::kernels;
  if (simd_level == isa::avx2) return avx2_argmin::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_argmin::kernels;
}

}  // namespace KVPOLICY_NAMESPACE::detail
