// SPDX-License-Identifier: Apache-2.0
// Conversion of rows of any element type to and from floats, on the host.
#pragma once

#include <kvpolicy/core/signals.hpp>

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

}  // namespace KVPOLICY_NAMESPACE::detail
