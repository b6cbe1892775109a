// The update of a row of query memory from the sum of a span's rows, for each instruction set.
//
// No instruction set has fused operations here, and partial sums are added in one order, so all of them give the same
// bits.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cmath>
#include <cstddef>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <kvpolicy/ops/update_query_memory.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// An update of a row is `mix`, and then `put` with the factor that makes the values a unit vector. Between them are a
/// square root and a division, which take long: the rows of some heads are mixed before the first one is put.
struct memory_row_kernels {
  /// values = share values + keep memory, of `dims` numbers. Returns the sum of the squares of what it made.
  double (*mix)(double* values, int dims, double share, query_memory_update const& how, float const* memory) = nullptr;
  /// memory = factor values.
  void (*put)(double const* values, int dims, double factor, float* memory) = nullptr;
};

/// The factor that makes values with this sum of squares a unit vector; 1 if they are zeros.
[[nodiscard]] inline double unit_factor(double squares) {
  double const norm = std::sqrt(squares);
  return norm > 0 ? 1 / norm : 1;
}

/// Squares are added to one of so many sums, in turn.
inline constexpr int square_sums = 32;

/// `Width` is the number of doubles in a vector.
template <int Width>
struct memory_row_bodies {
  using floats = typename vector_of<Width>::floats;
  using doubles = typename vector_of<Width>::doubles;
  static constexpr int parts = square_sums / Width;

  [[gnu::always_inline]] static inline double mix(double* values, int dims, double share,
                                                  query_memory_update const& how, float const* memory) {
    if (how.normalise) share = unit_factor(squares(values, dims));
    auto const kept = static_cast<double>(how.keep);
    bool const keeps = how.keep > 0;  // else a NaN in the old memory is dropped
    int d = 0;
    for (; d + Width <= dims; d += Width) {
      doubles value;
      floats old{};
      get(value, values + d);
      if (keeps) get(old, memory + d);
      detail::put(value * share + __builtin_convertvector(old, doubles) * kept, values + d);
    }
    for (; d < dims; ++d) values[d] = values[d] * share + (keeps ? kept * static_cast<double>(memory[d]) : 0.0);
    return squares(values, dims);
  }
  [[gnu::always_inline]] static inline void put(double const* values, int dims, double factor, float* memory) {
    int d = 0;
    for (; d + Width <= dims; d += Width) {
      doubles value;
      get(value, values + d);
      detail::put(__builtin_convertvector(value * factor, floats), memory + d);
    }
    for (; d < dims; ++d) memory[d] = static_cast<float>(values[d] * factor);
  }

 private:
  [[gnu::always_inline]] static inline double squares(double const* values, int dims) {
    doubles sums[static_cast<std::size_t>(parts)] = {};
    int d = 0;
    for (; d + square_sums <= dims; d += square_sums) add_squares(values + d, square_sums, sums);
    add_squares(values + d, dims - d, sums);
    for (int half = parts / 2; half > 0; half /= 2) {
      for (int p = 0; p < half; ++p) sums[p] += sums[p + half];
    }
    double last[static_cast<std::size_t>(Width)];
    detail::put(sums[0], last);
    for (int half = Width / 2; half > 0; half /= 2) {
      for (int c = 0; c < half; ++c) last[c] += last[c + half];
    }
    return last[0];
  }
  /// Adds the squares of up to `square_sums` values, number i to sum i.
  [[gnu::always_inline]] static inline void add_squares(double const* values, int count, doubles* sums) {
    for (int p = 0; p < parts && p * Width < count; ++p) {
      doubles value{};
      if ((p + 1) * Width <= count) {
        get(value, values + p * Width);
      } else {
        for (int c = p * Width; c < count; ++c) value[c - p * Width] = values[c];
      }
      sums[p] += value * value;
    }
  }
};

struct portable_memory_rows {
  static double mix(double* values, int dims, double share, query_memory_update const& how, float const* memory) {
    return memory_row_bodies<2>::mix(values, dims, share, how, memory);
  }
  static void put(double const* values, int dims, double factor, float* memory) {
    memory_row_bodies<2>::put(values, dims, factor, memory);
  }
  static constexpr memory_row_kernels kernels{mix, put};
};

#if defined(__x86_64__)

struct avx2_memory_rows {
  [[gnu::target("avx2")]] static double mix(double* values, int dims, double share, query_memory_update const& how,
                                            float const* memory) {
    return memory_row_bodies<4>::mix(values, dims, share, how, memory);
  }
  [[gnu::target("avx2")]] static void put(double const* values, int dims, double factor, float* memory) {
    memory_row_bodies<4>::put(values, dims, factor, memory);
  }
  static constexpr memory_row_kernels kernels{mix, put};
};

/// Eight channels at a time, with intrinsics: the body above would have fused operations, and g++ would convert four.
struct avx512_memory_rows {
  [[gnu::target(KVPOLICY_AVX512)]] static double mix(double* values, int dims, double share,
                                                     query_memory_update const& how, float const* memory) {
    if (how.normalise) {
      eights sums;
      for (int d = 0; d < dims; d += square_sums) {
        for (int p = 0; p < parts; ++p) sums.add_square(p, eight(values, d + 8 * p, dims));
      }
      share = unit_factor(sums.total());
    }
    __m512d const shares = _mm512_set1_pd(share), kept = _mm512_set1_pd(static_cast<double>(how.keep));
    auto const old = static_cast<__mmask8>(how.keep > 0 ? 0xFF : 0);
    eights sums;
    int d = 0;
    for (; d + square_sums <= dims; d += square_sums) {
      for (int p = 0; p < parts; ++p) {
        int const at = d + 8 * p;
        __m512d const before = product(_mm512_maskz_cvtps_pd(0xFF, _mm256_maskz_loadu_ps(old, memory + at)), kept);
        __m512d const value = _mm512_add_pd(product(_mm512_loadu_pd(values + at), shares), before);
        _mm512_storeu_pd(values + at, value);
        sums.add_square(p, value);
      }
    }
    for (int p = 0; p < parts && d < dims; ++p, d += 8) {
      __mmask8 const there = first(dims - d);
      __m256 const some = _mm256_maskz_loadu_ps(there & old, memory + d);
      __m512d const before = product(_mm512_maskz_cvtps_pd(0xFF, some), kept);
      __m512d const value = _mm512_add_pd(product(eight(values, d, dims), shares), before);
      _mm512_mask_storeu_pd(values + d, there, value);
      sums.add_square(p, value);
    }
    return sums.total();
  }
  [[gnu::target(KVPOLICY_AVX512)]] static void put(double const* values, int dims, double factor, float* memory) {
    __m512d const factors = _mm512_set1_pd(factor);
    int d = 0;
    for (; d + 8 <= dims; d += 8) {
      _mm256_storeu_ps(memory + d, _mm512_maskz_cvtpd_ps(0xFF, _mm512_mul_pd(_mm512_loadu_pd(values + d), factors)));
    }
    for (; d < dims; ++d) memory[d] = static_cast<float>(values[d] * factor);
  }
  static constexpr memory_row_kernels kernels{mix, put};

 private:
  static constexpr int parts = square_sums / 8;

  /// Partial sums of squares.
  struct eights {
    __m512d of[parts] = {};

    [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline void add_square(int p, __m512d value) {
      of[p] = _mm512_add_pd(of[p], product(value, value));
    }
    [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] inline double total() const {
      static_assert(parts == 4);
      __m512d const all = _mm512_add_pd(_mm512_add_pd(of[0], of[2]), _mm512_add_pd(of[1], of[3]));
      __m256d const low = _mm512_maskz_extractf64x4_pd(0xFF, all, 0), high = _mm512_maskz_extractf64x4_pd(0xFF, all, 1);
      __m256d const four = _mm256_add_pd(low, high);
      __m128d const two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
      return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
    }
  };
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __mmask8 first(int count) {
    return static_cast<__mmask8>(count >= 8 ? 0xFFu : count > 0 ? (1u << count) - 1 : 0u);
  }
  /// Eight values from `d` on; zeros behind the end of the row.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512d eight(double const* values, int d,
                                                                                   int dims) {
    return _mm512_maskz_loadu_pd(first(dims - d), values + d);
  }
  /// A product that compilers do not fuse with a sum.
  [[gnu::target(KVPOLICY_AVX512), gnu::always_inline]] static inline __m512d product(__m512d a, __m512d b) {
    return _mm512_maskz_mul_pd(0xFF, a, b);
  }
};

#endif

/// The kernels for an executor's instruction set.
[[nodiscard]] inline memory_row_kernels const& memory_rows_for(isa simd_level) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx512) return avx512_memory_rows::kernels;
  if (simd_level == isa::avx2) return avx2_memory_rows::kernels;
#endif
  static_cast<void>(simd_level);
  return portable_memory_rows::kernels;
}

}  // namespace KVPOLICY_NAMESPACE::detail
