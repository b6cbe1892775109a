// SPDX-License-Identifier: Apache-2.0
// The alignment of query rows, which a device needs to read them.
#pragma once

#include <kvpolicy/ops/cuda/moves/rows.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The alignment of the address of the rows and of all their strides.
[[nodiscard]] inline int alignment_of(query_view const& rows) {
  return alignment_of_bits(reinterpret_cast<std::uintptr_t>(rows.base) |
                           static_cast<std::uintptr_t>(rows.sequence | rows.layer | rows.head | rows.row));
}
inline void check_aligned(char const* call, query_view const& rows, char const* name = "queries") {
  expect_aligned(call, name, alignment_of(rows), rows.element);
}

}  // namespace KVPOLICY_NAMESPACE::detail
