// Rows on the host: any element type as floats.
#pragma once

#include <kvpolicy/core/signals.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// `dims` elements, `step` bytes apart, as floats.
inline void load_row(codec element, std::byte const* from, std::int64_t step, int dims, float* to) {
  if (element == codec::f32 && step == 4) {
    std::memcpy(to, from, static_cast<std::size_t>(dims) * sizeof(float));
    return;
  }
  for (int d = 0; d < dims; ++d) to[d] = load(element, from + d * step);
}

}  // namespace KVPOLICY_NAMESPACE::detail
