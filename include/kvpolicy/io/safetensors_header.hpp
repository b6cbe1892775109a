// SPDX-License-Identifier: Apache-2.0
// Parses the header of a safetensors file as JSON, for every reader of such files. This header needs nlohmann-json, so
// the umbrella header does not include it.
#pragma once

#include <algorithm>
#include <kvpolicy/core/config.hpp>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
/// - in: `refuse(wrong, value, rule)`, which throws if `wrong`; `twice(depth, name)`, which throws: an object has the
///   name twice. The names of tensors have the depth 1, and those of a tensor's fields 2.
/// - out: a JSON object, in which every name was there once.
template <class Refuse, class Twice>
[[nodiscard]] nlohmann::json parse_safetensors_header(std::string_view text, Refuse const& refuse, Twice const& twice) {
  constexpr int most = 16;
  using json = nlohmann::json;
  std::vector<std::set<std::string>> open;  // the names so far in each object that has begun and not ended
  std::pair<int, std::string> again;        // the depth and the name of one that is there twice; 0: none is
  auto const watch = [&](int level, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second) {
      again = {level, parsed.get<std::string>()};
    }
    return true;
  };
  int const depth = nesting_depth(text);
  bool const parses = depth <= most;
  json header = parses ? json::parse(text, watch, false) : json(json::value_t::discarded);
  bool const object = parses ? header.is_object() : text[text.find_first_of("{[")] == '{';
  refuse(!object, std::to_string(text.size()) + " bytes", "they are not a JSON object");
  refuse(!parses, std::to_string(depth) + " levels of brackets", "they nest at most 16 levels deep");
  if (again.first != 0) twice(again.first, again.second);
  return header;
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
