// SPDX-License-Identifier: Apache-2.0
// The alignment of query rows, which a device needs to read them.
#pragma once

#include <kvpolicy/ops/cuda/moves/rows.hpp>

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

/// Throws unless elements are aligned to their size, since a device loads each of them at once.
inline void check_aligned(char const* call, query_view const& rows, char const* name = "queries") {
  expects(alignment_of(rows) >= bytes_of(rows.element), call, name, "misaligned rows", [&] {
    return "a device reads elements of " + std::to_string(bytes_of(rows.element)) + " bytes where they are aligned";
  });
}

}  // namespace KVPOLICY_NAMESPACE::detail
