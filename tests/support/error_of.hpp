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

/// The text with which a part's own check refuses it in a call "here"; empty if it is sound.
template <class Part>
std::string refusal_of_part(Part const& part) {
  return error_of([&] { part.check("here"); });
}

}  // namespace kvpolicy_test
