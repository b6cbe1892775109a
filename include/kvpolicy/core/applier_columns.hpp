// SPDX-License-Identifier: Apache-2.0
// The columns of a state that an applier keeps for itself.
#pragma once

#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/columns.hpp>
#include <kvpolicy/core/contract/hook_checks.hpp>
#include <vector>

namespace KVPOLICY_NAMESPACE::detail {

/// The form of an applier's hook `columns`.
template <class A>
using applier_columns_hook =
    optional_hook<hook::applier_columns,
                  form_of_call<hook::applier_columns, A, exactly<std::vector<column>>, cache const&>()>;

/// The columns that an applier keeps for itself beside those of the recorders; mostly none.
template <class Applier>
[[nodiscard]] std::vector<column> columns_of_applier([[maybe_unused]] Applier const& how,
                                                     [[maybe_unused]] cache const& in) {
  if constexpr (fits<hooks<Applier, applier_columns_hook<Applier>>>()) {
    if constexpr (requires { how.columns(in); }) return how.columns(in);
  }
  return {};
}

}  // namespace KVPOLICY_NAMESPACE::detail
