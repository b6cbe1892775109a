// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <string>

namespace kvpolicy_test {

/// The text of the error that a call throws; empty if it throws none.
template <class Call>
std::string error_of(Call const& call) {
  try {
    call();
  } catch (kvpolicy::invalid_argument const& refused) {
    return refused.what();
  }
  return "";
}

}  // namespace kvpolicy_test
