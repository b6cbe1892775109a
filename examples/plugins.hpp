// SPDX-License-Identifier: Apache-2.0
// The option `--plugin` of programs whose registry takes parts of a user's own.
#pragma once

#include <concepts>
#include <kvpolicy/plugin.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace examples {

/// Adds the parts of these plugins to a registry. Those of another executor than the host's take none.
/// - throws: `kvpolicy::invalid_argument` that names the program, the option and the file.
template <class Registry>
void load_plugins(std::string const& program, std::vector<std::string> const& files, Registry& into) {
  for (std::string const& file : files) {
    if constexpr (std::same_as<Registry, kvpolicy::registry>) {
      try {
        kvpolicy::load_plugin(file, into);
      } catch (kvpolicy::invalid_argument const& wrong) {
        std::string const said = wrong.what();
        throw kvpolicy::invalid_argument(program + ": --plugin" +
                                         said.substr(std::string_view("load_plugin: file").size()));
      }
    } else {
      kvpolicy::expects(false, program.c_str(), "--plugin", file, "its parts are built for the host");
    }
  }
}

}  // namespace examples
