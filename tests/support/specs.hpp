// SPDX-License-Identifier: Apache-2.0
// What specs are refused with. It is no part of support/test.hpp: a program that parses has all policies in it.
#pragma once

#include "support/test.hpp"

namespace kvpolicy_test {

/// What a spec of a policy is refused with.
inline std::string parse_error(std::string const& spec) {
  return error_of([&] { (void)kv::parse(spec); });
}

/// Checks what a call says of texts, in pairs: says(parse_error, "parse: ")({{"knorm(", "column 7 = ..."}, ...}). What
/// is said begins with `begin`, which the pairs leave out.
template <class Call>
auto says(Call const& call, std::string const& begin) {
  return [&call, begin](std::vector<std::pair<std::string, std::string>> const& all) {
    for (auto const& [text, said] : all) {
      CAPTURE(text);
      CHECK(call(text.c_str()) == begin + said);
    }
  };
}

}  // namespace kvpolicy_test
