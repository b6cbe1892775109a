// Parses the header of a safetensors file as JSON, for every reader of such files. This header needs nlohmann-json, so
// the umbrella header does not include it.
#pragma once

#include <algorithm>
#include <kvpolicy/core/config.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The nesting depth of the brackets of a JSON text. Brackets in strings do not count. O(characters).
[[nodiscard]] inline int nesting_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char const one = text[i];
    if (in_string && one == '\\') ++i;
    if (one == '"') in_string = !in_string;
    if (in_string) continue;
    if (one == '{' || one == '[') deepest = std::max(deepest, ++depth);
    if (one == '}' || one == ']') --depth;
  }
  return deepest;
}

/// Parses a header, which nests three levels deep. It refuses a header of more than 16 levels before it parses it,
/// because copying or printing a JSON value recurses and could overflow the stack.
///
/// - in: `watch(depth, event, value)`, nlohmann-json's parser callback; `refuse(wrong, value, rule)`, which throws if
///   `wrong`.
/// - out: a JSON object.
template <class Watch, class Refuse>
[[nodiscard]] nlohmann::json parse_safetensors_header(std::string_view text, Watch const& watch, Refuse const& refuse) {
  constexpr int most = 16;
  using json = nlohmann::json;
  int const depth = nesting_depth(text);
  bool const parses = depth <= most;
  json header = parses ? json::parse(text, watch, false) : json(json::value_t::discarded);
  bool const object = parses ? header.is_object() : text[text.find_first_of("{[")] == '{';
  refuse(!object, std::to_string(text.size()) + " bytes", "they are not a JSON object");
  refuse(!parses, std::to_string(depth) + " levels of brackets", "they nest at most 16 levels deep");
  return header;
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
