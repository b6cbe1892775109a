// SPDX-License-Identifier: Apache-2.0
// The parameters of a policy as a list of fields, from which a policy is printed, read and hashed.
#pragma once

#include <array>
#include <charconv>
#include <concepts>
#include <kvpolicy/core/config.hpp>
#include <string>
#include <tuple>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {

/// A data member of Owner.
template <class Owner, class Value>
using member_of = Value Owner::*;

/// A parameter: its name in a spec and its data member. A field named "" prints its value alone, as in `sinks(4)`.
template <class Owner, class Value>
struct field {
  char const* name;
  member_of<Owner, Value> member;
};
template <class Owner, class Value>
field(char const*, Value Owner::*) -> field<Owner, Value>;

/// A list of fields, which `make_fields` makes. It is a closure that calls a function with them.
template <class Call, class... Fields>
struct field_list {
  Call call;
};

/// Lists the fields of a type, in the order in which they print:
///
///     static constexpr auto fields() { return kv::make_fields(kv::field{"tokens", &sinks::tokens}); }
///
/// A `std::tuple` of fields serves, too, but it takes a compiler several times as long.
template <class... Fields>
[[nodiscard]] constexpr auto make_fields(Fields... fields) {
  auto const call = [fields...](auto const& visit) { return visit(fields...); };
  return field_list<decltype(call), Fields...>{call};
}

/// A type with a name and a list of fields: `static constexpr auto name`, `static constexpr auto fields()`.
template <class T>
concept described = requires {
  { T::name } -> std::convertible_to<char const*>;
  T::fields();
};

/// An enumeration whose values have names: `constexpr std::array names(my_enum)` returns them in the order of the
/// values. It is found by argument-dependent lookup, so it must be in the namespace of the enumeration.
template <class T>
concept named_values = std::is_enum_v<T> && requires(T value) {
  { names(value).size() } -> std::convertible_to<std::size_t>;
};

/// Prints a value, for example "snapkv(window=32, pool=max:7)". Numbers print so that reading them back gives the same
/// value.
template <class T>
[[nodiscard]] std::string to_string(T const& value);

namespace detail {

template <class Number>
std::string print_number(Number value) {
  char text[64];
  auto const end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

template <class Visit, class Call, class... Fields>
constexpr auto apply_fields(Visit const& visit, field_list<Call, Fields...> const& all) {
  return all.call(visit);
}
template <class Visit, class... Fields>
constexpr auto apply_fields(Visit const& visit, std::tuple<Fields...> const& all) {
  return std::apply(visit, all);
}

/// Calls visit(fields...) with the fields of a type. A type without a list has none.
template <class T, class Visit>
constexpr auto with_fields(Visit const& visit) {
  if constexpr (requires { T::fields(); }) {
    return apply_fields(visit, T::fields());
  } else {
    return visit();
  }
}

template <described T>
std::string print_described(T const& value) {
  std::string text = T::name;
  char const* separator = "(";
  with_fields<T>([&](auto const&... each) {
    ((text.append(separator).append(each.name).append(*each.name != '\0' ? "=" : ""),
      text += to_string(value.*each.member), separator = ", "),
     ...);
  });
  return *separator == '(' ? text : text + ")";
}

}  // namespace detail

template <class T>
std::string to_string(T const& value) {
  if constexpr (std::same_as<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::integral<T> || std::floating_point<T>) {
    return detail::print_number(value);
  } else if constexpr (named_values<T>) {
    return names(value)[static_cast<std::size_t>(value)];
  } else if constexpr (requires {
                         typename T::wraps;  // a stage prints the scorer inside, too
                         print(value);
                       }) {
    return print(value);
  } else if constexpr (described<T>) {
    return detail::print_described(value);
  } else if constexpr (std::convertible_to<T, char const*>) {
    return value;
  } else if constexpr (requires { print(value); }) {
    return print(value);  // found by argument-dependent lookup
  } else if constexpr (requires { std::string(T::name); }) {
    return T::name;
  } else {
    return "unnamed";  // a user's type that has neither a name nor fields
  }
}

}  // namespace KVPOLICY_NAMESPACE
