// SPDX-License-Identifier: Apache-2.0
// Short names in the parameters of policies.
#pragma once

#include <cstddef>
#include <kvpolicy/core/config.hpp>
#include <string>
#include <string_view>

namespace KVPOLICY_NAMESPACE {

namespace detail {
/// True for a text that a spec can say as a value or as the name of a field: it has no blank, no control character and
/// none of , ( ) | =
[[nodiscard]] constexpr bool sayable(std::string_view text) {
  for (char const each : text) {
    bool const control = static_cast<unsigned char>(each) <= ' ' || each == 0x7F;
    if (control || std::string_view(",()|=").find(each) != std::string_view::npos) return false;
  }
  return true;
}
}  // namespace detail

/// A short name in a policy's parameters. At most 31 characters.
struct label {
  char text[32] = {};
  friend bool operator==(label const&, label const&) = default;
};

/// Prints the name. A character that a spec cannot say prints as `?`, so that no name prints as more than a value.
[[nodiscard]] inline std::string print(label const& of) {
  std::string name;
  for (std::size_t i = 0; i < sizeof of.text && of.text[i] != '\0'; ++i) {
    name += detail::sayable({of.text + i, 1}) ? of.text[i] : '?';
  }
  return name;
}

/// Describes the text of a label, for error messages.
[[nodiscard]] inline std::string wanted_text(label const*) { return "a name of at most 31 characters"; }

/// Reads what `print` writes; false if it is too long, or has a character that a spec cannot say.
[[nodiscard]] inline bool read_text(std::string_view text, label& to) {
  if (text.size() >= sizeof to.text || !detail::sayable(text)) return false;
  to = {};
  for (std::size_t i = 0; i < text.size(); ++i) to.text[i] = text[i];
  return true;
}

}  // namespace KVPOLICY_NAMESPACE
