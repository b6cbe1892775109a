// SPDX-License-Identifier: Apache-2.0
// Errors: a message names the call, the argument, its value and the rule that it breaks, in one line.
#pragma once

#include <charconv>
#include <concepts>
#include <kvpolicy/core/config.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace KVPOLICY_NAMESPACE {

/// A wrong argument of a call. It is thrown before anything was written.
class invalid_argument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

namespace detail {

/// Converts a text, a number, or a function that returns a text. Functions are called only when an error is thrown, so
/// that a correct call allocates nothing.
template <class Text>
std::string spell(Text const& text) {
  if constexpr (std::is_floating_point_v<Text>) {
    char digits[64];
    return {digits, std::to_chars(digits, digits + sizeof digits, text).ptr};
  } else if constexpr (std::is_arithmetic_v<Text>) {
    return std::to_string(text);
  } else if constexpr (requires { text(); }) {
    return std::string(text());
  } else {
    return std::string(text);
  }
}

[[noreturn]] inline void reject(std::string const& call, std::string const& name, std::string const& value,
                                std::string const& rule) {
#if defined(__cpp_exceptions)  // without exceptions config.hpp gives the only error
  throw invalid_argument(call + ": " + name + " = " + value + ", but " + rule);
#endif
}

}  // namespace detail

/// Throws `invalid_argument` with "call: name = value, but rule" unless `ok`. Name, value and rule may be functions.
template <class Name, class Value, class Rule>
constexpr void expects(bool ok, std::string_view call, Name name, Value value, Rule rule) {
  if (!ok) detail::reject(std::string(call), detail::spell(name), detail::spell(value), detail::spell(rule));
}

}  // namespace KVPOLICY_NAMESPACE
