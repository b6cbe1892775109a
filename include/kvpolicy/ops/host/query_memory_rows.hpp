// The update of a row of query memory from the sum of a span's rows, for each instruction set.
//
// No instruction set has fused operations here, and partial sums are added in one order, so all of them give the same
// bits.
#pragma once

#include <cmath>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <kvpolicy/ops/update_query_memory.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Updates a row of `dims` floats. The mean is `share` times the values, which are overwritten.
using remember_row = void (*)(double* values, int dims, double share, query_memory_update const& how, float* memory);

/// `Width` is the number of doubles in a vector, at most 8.
template <int Width>
struct remember_bodies {
  using floats = typename vector_of<Width>::floats;
  using doubles = typename vector_of<Width>::doubles;
  static constexpr int chains = 8;

  [[gnu::always_inline]] static inline void remember(double* values, int dims, double share,
                                                     query_memory_update const& how, float* memory) {
    if (how.normalise) share *= unit_scale(values, dims, share);
    mix(values, dims, share, how.keep, memory);
    double const scale = unit_scale(values, dims, 1);
    int d = 0;
    for (; d + Width <= dims; d += Width) {
      doubles value;
      get(value, values + d);
      put(__builtin_convertvector(value * scale, floats), memory + d);
    }
    for (; d < dims; ++d) memory[d] = static_cast<float>(values[d] * scale);
  }

 private:
  /// values = share values + keep memory. If nothing is kept, a NaN in the old memory is dropped.
  [[gnu::always_inline]] static inline void mix(double* values, int dims, double share, float keep,
                                                float const* memory) {
    auto const kept = static_cast<double>(keep);
    int d = 0;
    for (; d + Width <= dims; d += Width) {
      doubles value;
      floats old{};
      get(value, values + d);
      if (keep > 0) get(old, memory + d);
      put(value * share + __builtin_convertvector(old, doubles) * kept, values + d);
    }
    for (; d < dims; ++d) values[d] = values[d] * share + (keep > 0 ? kept * static_cast<double>(memory[d]) : 0.0);
  }

  /// The factor that makes `factor` times the values a unit vector; 1 if they are zeros.
  [[gnu::always_inline]] static inline double unit_scale(double const* values, int dims, double factor) {
    doubles parts[static_cast<std::size_t>(chains / Width)] = {};
    int d = 0;
    for (; d + chains <= dims; d += chains) {
      for (int p = 0; p < chains / Width; ++p) {
        doubles value;
        get(value, values + d + p * Width);
        parts[p] += value * value;
      }
    }
    double sums[static_cast<std::size_t>(chains)];
    for (int p = 0; p < chains / Width; ++p) put(parts[p], sums + p * Width);
    for (int c = 0; d < dims; ++d, ++c) sums[c] += values[d] * values[d];
    for (int half = chains / 2; half > 0; half /= 2) {
      for (int c = 0; c < half; ++c) sums[c] += sums[c + half];
    }
    double const norm = std::sqrt(sums[0]) * factor;
    return norm > 0 ? 1 / norm : 1;
  }
};

inline void remember_row_portable(double* values, int dims, double share, query_memory_update const& how,
                                  float* memory) {
  remember_bodies<2>::remember(values, dims, share, how, memory);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] inline void remember_row_avx2(double* values, int dims, double share,
                                                      query_memory_update const& how, float* memory) {
  remember_bodies<4>::remember(values, dims, share, how, memory);
}
#endif

/// The code for an executor's instruction set.
[[nodiscard]] inline remember_row remember_row_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx2) return remember_row_avx2;
#endif
  static_cast<void>(simd_level);
  return remember_row_portable;
}

}  // namespace KVPOLICY_NAMESPACE::detail
