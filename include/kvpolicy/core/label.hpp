// Short names in the parameters of policies.
#pragma once

#include <cstddef>
#include <kvpolicy/core/config.hpp>
#include <string>
#include <string_view>

namespace KVPOLICY_NAMESPACE {

/// A short name in a policy's parameters. At most 31 characters.
struct label {
  char text[32] = {};
  friend bool operator==(label const&, label const&) = default;
};

[[nodiscard]] inline std::string print(label const& of) { return of.text; }

/// Describes the text of a label, for error messages.
[[nodiscard]] inline std::string wanted_text(label const*) { return "a name of at most 31 characters"; }

/// Reads what `print` writes; false if it is too long, or has a null character.
[[nodiscard]] inline bool read_text(std::string_view text, label& to) {
  if (text.size() >= sizeof to.text || text.find('\0') != std::string_view::npos) return false;
  to = {};
  for (std::size_t i = 0; i < text.size(); ++i) to.text[i] = text[i];
  return true;
}

}  // namespace KVPOLICY_NAMESPACE
