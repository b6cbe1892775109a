// Query rows on a device: they are read where their elements are aligned.
#pragma once

#include <kvpolicy/ops/cuda/rows.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The largest power of two, up to 16, that divides the address of the rows and all their strides.
[[nodiscard]] inline int alignment_of(query_view const& rows) {
  auto bits = reinterpret_cast<std::uintptr_t>(rows.base);
  for (std::int64_t const stride : {rows.sequence, rows.layer, rows.head, rows.row}) {
    bits |= static_cast<std::uintptr_t>(stride);
  }
  int most = 16;
  while (most > 1 && bits % static_cast<std::uintptr_t>(most) != 0) most /= 2;
  return most;
}

/// A device reads an element at once, so it must be aligned to its size.
inline void check_aligned(char const* call, query_view const& rows) {
  expects(alignment_of(rows) >= bytes_of(rows.element), call, "queries", "misaligned rows", [&] {
    return "a device reads elements of " + std::to_string(bytes_of(rows.element)) + " bytes where they are aligned";
  });
}

}  // namespace KVPOLICY_NAMESPACE::detail
