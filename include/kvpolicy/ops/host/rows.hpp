// Conversion of rows of any element type to and from floats, on the host.
#pragma once

#include <kvpolicy/core/signals.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Converts `dims` elements, `step` bytes apart, to floats. Contiguous elements have a loop of their own, so that
/// compilers can vectorise it.
inline void load_row(codec element, std::byte const* from, std::int64_t step, int dims, float* to) {
  if (element == codec::f32 && step == 4) {
    std::memcpy(to, from, static_cast<std::size_t>(dims) * sizeof(float));
  } else if (element == codec::bf16 && step == 2) {
    for (int d = 0; d < dims; ++d) to[d] = load(codec::bf16, from + 2 * std::ptrdiff_t{d});
  } else if (element == codec::f16 && step == 2) {
    for (int d = 0; d < dims; ++d) to[d] = load(codec::f16, from + 2 * std::ptrdiff_t{d});
  } else {
    for (int d = 0; d < dims; ++d) to[d] = load(element, from + d * step);
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
