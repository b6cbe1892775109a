// SPDX-License-Identifier: Apache-2.0
// The option `--plugin` of programs whose registry takes parts of a user's own.
#pragma once

#include <kvpolicy/plugin.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace examples {

/// Adds the parts of these plugins to a registry.
/// - throws: `kvpolicy::invalid_argument` that names the program, the option and the file.
inline void load_plugins(std::string const& program, std::vector<std::string> const& files, kvpolicy::registry& into) {
  for (std::string const& file : files) {
    try {
      kvpolicy::load_plugin(file, into);
    } catch (kvpolicy::invalid_argument const& wrong) {
      std::string const said = wrong.what();
      throw kvpolicy::invalid_argument(program + ": --plugin" +
                                       said.substr(std::string_view("load_plugin: file").size()));
    }
  }
}

}  // namespace examples
