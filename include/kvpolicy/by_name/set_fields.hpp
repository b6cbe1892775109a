// SPDX-License-Identifier: Apache-2.0
// Parameters by name: reads values, sets the fields of a described type, and lists them.
#pragma once

#include <kvpolicy/by_name/spec.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/read_number.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {

/// A parameter in a list.
struct field_info {
  std::string name;
  std::string type;  ///< "an integer", "a number", "true or false", "sum, mean, max or last", ...
  std::string value;
};

namespace detail {

/// Describes the values of a type, for error messages and lists.
template <class T>
std::string wanted() {
  if constexpr (std::same_as<T, bool>) {
    return "true or false";
  } else if constexpr (std::integral<T>) {
    return "an integer";
  } else if constexpr (std::floating_point<T>) {
    return "a number";
  } else if constexpr (named_values<T>) {
    auto const all = names(T{});
    std::string text;
    for (std::size_t i = 0; i < all.size(); ++i) {
      text += (i == 0 ? "" : i + 1 == all.size() ? " or " : ", ") + std::string(all[i]);
    }
    return text;
  } else {
    return wanted_text(static_cast<T const*>(nullptr));  // found by argument-dependent lookup
  }
}

/// Reads a value from all of a text. False if the text is no value of this type.
template <class T>
bool read_value(std::string_view text, T& to) {
  if constexpr (std::same_as<T, bool>) {
    to = text == "true";
    return to || text == "false";
  } else if constexpr (std::integral<T> || std::floating_point<T>) {
    if (!read_number(text, to)) return false;
    if constexpr (std::floating_point<T>) return to - to == 0;  // neither infinite nor NaN
    return true;
  } else if constexpr (named_values<T>) {
    auto const all = names(T{});
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (text == all[i]) {
        to = static_cast<T>(i);
        return true;
      }
    }
    return false;
  } else {
    return read_text(text, to);  // found by argument-dependent lookup
  }
}

template <class T>
void read_argument(spec_argument const& from, std::string const& what, T& to) {
  T value = to;
  bool const good = read_value(from.value, value);
  if (!good) refuse_spec(from.value_column, from.value, what + " is " + wanted<T>());
  to = value;
}

template <class T>
std::vector<std::string> field_names() {
  std::vector<std::string> names;
  with_fields<T>([&](auto const&... each) { (names.emplace_back(each.name), ...); });
  return names;
}

/// Sets one field by its name, or by its place if the argument has no name.
template <class T>
void set_field(T& to, std::string const& owner, spec_argument const& from, std::size_t place) {
  bool found = false;
  std::size_t index = 0;
  auto const one = [&](auto const& each) {
    bool const named = !from.name.empty() && from.name == each.name;
    bool const placed = from.name.empty() && index == place;
    if (named || placed) {
      read_argument(from, owner + "'s " + (*each.name != '\0' ? each.name : "value"), to.*each.member);
      found = true;
    }
    ++index;
  };
  with_fields<T>([&](auto const&... each) { (one(each), ...); });
  if (found) return;
  std::string_view const what = from.name.empty() ? from.value : from.name;
  if (index == 0) refuse_spec(from.name_column, what, owner + " has no fields");
  refuse_spec(from.name_column, what, accepted(owner + " has the fields", field_names<T>(), what));
}

/// The argument of a part that sets a field of a described type, by the field's name or by its place. Null: none does.
template <class T>
spec_argument const* argument_of(spec_part const& from, std::string_view name) {
  std::vector<std::string> const names = field_names<T>();
  for (std::size_t i = 0; i < from.arguments.size(); ++i) {
    spec_argument const& one = from.arguments[i];
    if (one.name.empty() ? i < names.size() && names[i] == name : one.name == name) return &one;
  }
  return nullptr;
}

/// Sets the fields of a described type from a part's arguments. Each field may be given once.
template <class T>
void set_fields(T& to, spec_part const& from) {
  for (std::size_t i = 0; i < from.arguments.size(); ++i) {
    spec_argument const& one = from.arguments[i];
    bool const twice = !one.name.empty() && argument_of<T>(from, one.name) != &one;
    if (twice) refuse_spec(one.name_column, one.name, "that field was given before");
    bool const late = one.name.empty() && i > 0 && !from.arguments[i - 1].name.empty();
    if (late) refuse_spec(one.name_column, one.value, "after a named field all are named");
    set_field(to, std::string(from.name), one, i);
  }
}

/// Calls a part's own check. Its error names the column.
template <class T>
void check_parsed(T const& part, int column) {
  std::string const call = "parse: column " + std::to_string(column);
  if constexpr (requires { part.check(call.c_str()); }) part.check(call.c_str());
}

}  // namespace detail

/// Lists the fields of a described value, with their types and values.
template <class T>
[[nodiscard]] std::vector<field_info> list_fields(T const& of) {
  std::vector<field_info> made;
  auto const one = [&](auto const& each) {
    using value = std::remove_cvref_t<decltype(of.*each.member)>;
    made.push_back({each.name, detail::wanted<value>(), to_string(of.*each.member)});
  };
  detail::with_fields<T>([&](auto const&... each) { (one(each), ...); });
  return made;
}

}  // namespace KVPOLICY_NAMESPACE
