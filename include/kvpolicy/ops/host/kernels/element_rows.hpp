// SPDX-License-Identifier: Apache-2.0
// Rows of elements: conversion to and from floats, and, for each instruction set, sums in float and copies.
//
// Every number is added to its sum in the order of the rows, so all instruction sets give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Converts `dims` elements of fp8, `step` bytes apart, to floats.
template <codec Element>
void load_fp8(std::byte const* from, std::int64_t step, int dims, float* to) {
  for (int d = 0; d < dims; ++d) to[d] = from_fp8(Element, static_cast<std::uint8_t>(from[d * step]));
}

/// Multiplies a row by its scale, unless that is 1.
inline void scale_row(float scale, int dims, float* row) {
  if (scale == 1.0f) return;
  for (int d = 0; d < dims; ++d) row[d] *= scale;
}

/// Converts `dims` elements, `step` bytes apart, to floats, without a scale. Contiguous elements have a loop of their
/// own, so that compilers can vectorise it.
inline void load_row(codec element, std::byte const* from, std::int64_t step, int dims, float* to) {
  if (element == codec::f32 && step == 4) {
    std::memcpy(to, from, static_cast<std::size_t>(dims) * sizeof(float));
  } else if (element == codec::bf16 && step == 2) {
    for (int d = 0; d < dims; ++d) to[d] = load(codec::bf16, from + 2 * std::ptrdiff_t{d});
  } else if (element == codec::f16 && step == 2) {
    for (int d = 0; d < dims; ++d) to[d] = load(codec::f16, from + 2 * std::ptrdiff_t{d});
  } else if (element == codec::e4m3) {
    load_fp8<codec::e4m3>(from, step, dims, to);
  } else if (element == codec::e5m2) {
    load_fp8<codec::e5m2>(from, step, dims, to);
  } else if (element == codec::f32) {
    for (int d = 0; d < dims; ++d) to[d] = load(codec::f32, from + d * step);
  } else if (element == codec::bf16) {
    for (int d = 0; d < dims; ++d) to[d] = load(codec::bf16, from + d * step);
  } else {
    for (int d = 0; d < dims; ++d) to[d] = load(codec::f16, from + d * step);
  }
}

/// Converts floats to elements, and rounds to nearest even.
inline void store_row(codec element, float const* from, std::int64_t step, int dims, std::byte* to) {
  if (element == codec::f32 && step == 4) {
    std::memcpy(to, from, static_cast<std::size_t>(dims) * sizeof(float));
  } else if (element == codec::bf16 && step == 2) {
    for (int d = 0; d < dims; ++d) store(codec::bf16, from[d], to + 2 * std::ptrdiff_t{d});
  } else if (element == codec::f16 && step == 2) {
    for (int d = 0; d < dims; ++d) store(codec::f16, from[d], to + 2 * std::ptrdiff_t{d});
  } else {
    for (int d = 0; d < dims; ++d) store(element, from[d], to + d * step);
  }
}

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
