// SPDX-License-Identifier: Apache-2.0
// Sums of the squares of rows, for each instruction set.
//
// Squares of f32 numbers are exact in double, and those of f16 and bf16 numbers in float. Partial sums are added in one
// order, whatever the vectors, so every instruction set gives the same bits.
#pragma once

#include <cmath>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int sums_of_a_norm = 16;         ///< partial sums of f32 rows, in double
inline constexpr int narrow_sums_of_a_norm = 64;  ///< partial sums of f16 and bf16 rows, in float

using norm_rows = std::byte const* const*;

/// Writes the sums of squares of `count` rows of `dims` contiguous elements each. With every line of a row a line of
/// the row `ahead` at the same index is prefetched into the second-level cache, so that a constant number of lines is
/// in flight. Rows `ahead` are not read.
struct norms_kernels {
  using function = void (*)(norm_rows rows, norm_rows ahead, int count, int dims, double* out);
  function f32 = nullptr;
  function f16 = nullptr;
  function bf16 = nullptr;
  /// The roots of sixteen sums, each of which is rounded to a float.
  using root_function = void (*)(double const* sums, float* norms);
  root_function roots = nullptr;

  [[nodiscard]] function of(codec element) const {
    return element == codec::f32 ? f32 : element == codec::f16 ? f16 : bf16;
  }
};

/// Adds the sixteen partial sums of a row.
[[nodiscard]] inline double add_sums(double* sums) {
  for (int half = sums_of_a_norm / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

[[nodiscard]] inline float number_at(codec element, std::byte const* at) {
  return element == codec::f32   ? load(codec::f32, at)
         : element == codec::f16 ? load(codec::f16, at)
                                 : load(codec::bf16, at);
}

/// The sum of squares of a row whose elements are `step` bytes apart, in double.
[[nodiscard]] inline double wide_square_sum(codec element, std::byte const* row, std::int64_t step, int dims) {
  double sums[sums_of_a_norm] = {};
  for (int d = 0; d < dims; ++d) {
    auto const value = static_cast<double>(number_at(element, row + d * step));
    sums[d % sums_of_a_norm] += value * value;
  }
  return add_sums(sums);
}

/// True if a sum of squares that was computed in float has lost nothing by being too large or too small.
[[nodiscard]] inline bool fits_float(double square_sum) { return square_sum >= 0x1p-80 && square_sum <= 0x1p126; }

/// What the kernels compute, of elements that are `step` bytes apart.
[[nodiscard]] inline double strided_square_sum(codec element, std::byte const* row, std::int64_t step, int dims) {
  if (element == codec::f32) return wide_square_sum(element, row, step, dims);
  float sums[narrow_sums_of_a_norm] = {};
  for (int d = 0; d < dims; ++d) {
    float const value = number_at(element, row + d * step);
    sums[d % 2 * 32 + d / 2 % 32] += value * value;
  }
  for (int half : {32, 16}) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  double all[sums_of_a_norm];
  for (int i = 0; i < sums_of_a_norm; ++i) all[i] = static_cast<double>(sums[i]);
  double const made = add_sums(all);
  return fits_float(made) ? made : wide_square_sum(element, row, step, dims);
}

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY norms
#include <kvpolicy/ops/host/simd/each_isa.hpp>
