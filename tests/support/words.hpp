// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace kvpolicy_test {

/// What spaces separate in a text: a long list of short texts, for a table that is no column.
inline std::vector<std::string> words(std::string const& text) {
  std::vector<std::string> all;
  std::istringstream from(text);
  for (std::string each; from >> each;) all.push_back(each);
  return all;
}

}  // namespace kvpolicy_test
