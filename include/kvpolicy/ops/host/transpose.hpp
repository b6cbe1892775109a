// Transposes squares of floats, for each instruction set.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/vectors.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The numbers on a side of the largest square.
inline constexpr int square_side = 16;

/// to[c * stride + r] = from[r][c * step] of `rows` rows and `columns` columns, each at most `square_side`. A zero
/// becomes +0.
using transpose_square = void (*)(float const* const* from, int step, int columns, int rows, float* to, int stride);

inline void transpose_portable(float const* const* from, int step, int columns, int rows, float* to, int stride) {
  for (int c = 0; c < columns; ++c) {
    for (int r = 0; r < rows; ++r) to[std::ptrdiff_t{c} * stride + r] = from[r][std::ptrdiff_t{c} * step] + 0.0f;
  }
}

#if defined(__x86_64__)

struct avx2_squares {
  /// For columns without gaps between them.
  [[gnu::target(KVPOLICY_AVX2)]] static void transpose(float const* const* from, int, int columns, int rows, float* to,
                                                       int stride) {
    if (columns != square_side || rows != square_side) return transpose_portable(from, 1, columns, rows, to, stride);
    for (int r = 0; r < square_side; r += side) {
      for (int c = 0; c < square_side; c += side) eight(from + r, c, to + std::ptrdiff_t{c} * stride + r, stride);
    }
  }

 private:
  static constexpr int side = 8;

  /// Eight rows and columns: pairs of rows, then fours, then halves of eight.
  [[gnu::target(KVPOLICY_AVX2), gnu::always_inline]] static inline void eight(float const* const* from, int first,
                                                                              float* to, int stride) {
    __m256 row[side], pair[side], four[side];
    for (int r = 0; r < side; ++r) row[r] = _mm256_add_ps(_mm256_loadu_ps(from[r] + first), _mm256_setzero_ps());
    for (int r = 0; r < side; r += 2) {
      pair[r] = _mm256_unpacklo_ps(row[r], row[r + 1]);
      pair[r + 1] = _mm256_unpackhi_ps(row[r], row[r + 1]);
    }
    for (int r = 0; r < side; r += 4) {
      four[r] = _mm256_shuffle_ps(pair[r], pair[r + 2], 0x44);
      four[r + 1] = _mm256_shuffle_ps(pair[r], pair[r + 2], 0xEE);
      four[r + 2] = _mm256_shuffle_ps(pair[r + 1], pair[r + 3], 0x44);
      four[r + 3] = _mm256_shuffle_ps(pair[r + 1], pair[r + 3], 0xEE);
    }
    for (int c = 0; c < side / 2; ++c) {
      float* const at = to + std::ptrdiff_t{c} * stride;
      _mm256_storeu_ps(at, _mm256_permute2f128_ps(four[c], four[c + 4], 0x20));
      _mm256_storeu_ps(at + std::ptrdiff_t{side / 2} * stride, _mm256_permute2f128_ps(four[c], four[c + 4], 0x31));
    }
  }
};

#endif

/// The code for an executor's instruction set, and columns `step` numbers apart.
[[nodiscard]] inline transpose_square transpose_for(isa simd_level, int step) {
#if defined(__x86_64__)
  if (simd_level >= isa::avx2 && step == 1) return avx2_squares::transpose;
#endif
  static_cast<void>(simd_level);
  static_cast<void>(step);
  return transpose_portable;
}

}  // namespace KVPOLICY_NAMESPACE::detail
