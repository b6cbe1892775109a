// SPDX-License-Identifier: Apache-2.0
// Sums of rows of f32, f16 and bf16 elements in float, and copies of rows, for each instruction set.
//
// Every number is added to its sum in the order of the rows, so all instruction sets give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/rows.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int rows_at_a_time = 8;  ///< more rows at a time are too many streams for a processor to follow

/// A function is given `count` rows of `dims` contiguous elements each, which may begin at any address. With every line
/// of a row a line of the row `ahead` at the same index is prefetched. Rows `ahead` are not read.
struct element_rows_kernels {
  /// to[d] = ((to[d] + rows[0][d]) + rows[1][d]) + ...
  using function = void (*)(std::byte const* const* rows, std::byte const* const* ahead, int count, int dims,
                            float* to);
  function f32 = nullptr;
  function f16 = nullptr;
  function bf16 = nullptr;
  /// to[d] = the maximum of to[d] and the rows, which are floats. A NaN stays.
  function max_f32 = nullptr;
  /// to[d] += (((0 + rows[0][d]) + rows[1][d]) + ...) / divisor, of 1 to `rows_at_a_time` rows.
  using sum_function = void (*)(std::byte const* const* rows, std::byte const* const* ahead, int count, int dims,
                                float divisor, float* to);
  sum_function sum_f32 = nullptr;
  sum_function sum_f16 = nullptr;
  sum_function sum_bf16 = nullptr;
  /// to[d] = (to[d] + weights[0] rows[0][d]) + weights[1] rows[1][d] ...; how products are rounded is `mul_add`'s.
  using weighted_function = void (*)(std::byte const* const* rows, std::byte const* const* ahead, float const* weights,
                                     int count, int dims, float* to);
  weighted_function weighted_f32 = nullptr;
  weighted_function weighted_f16 = nullptr;
  weighted_function weighted_bf16 = nullptr;
  /// Converts contiguous elements to floats.
  using convert_function = void (*)(std::byte const* from, int dims, float* to);
  convert_function convert_f16 = nullptr;
  convert_function convert_bf16 = nullptr;
  /// Copies whole cache lines to a place that begins with one, by stores that do not fetch the line that they
  /// overwrite. `finish_streams` must follow the last copy, so that other threads see what was written.
  void (*stream)(std::byte const* from, std::byte* to, int bytes) = nullptr;

  [[nodiscard]] function of(codec element) const {
    return element == codec::f32 ? f32 : element == codec::f16 ? f16 : bf16;
  }
  [[nodiscard]] sum_function sum_of(codec element) const {
    return element == codec::f32 ? sum_f32 : element == codec::f16 ? sum_f16 : sum_bf16;
  }
  [[nodiscard]] weighted_function weighted_of(codec element) const {
    return element == codec::f32 ? weighted_f32 : element == codec::f16 ? weighted_f16 : weighted_bf16;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY element_rows
#include <kvpolicy/ops/host/simd/each_isa.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Converts `dims` elements, `step` bytes apart, to floats, without a scale.
inline void convert_row(isa simd_level, codec element, std::byte const* from, std::int64_t step, int dims, float* to) {
  bool const contiguous = step == bytes_of(element);
  if (contiguous && element == codec::f16) return element_rows_of_isa[simd_level].convert_f16(from, dims, to);
  if (contiguous && element == codec::bf16) return element_rows_of_isa[simd_level].convert_bf16(from, dims, to);
  load_row(element, from, step, dims, to);
}

}  // namespace KVPOLICY_NAMESPACE::detail
