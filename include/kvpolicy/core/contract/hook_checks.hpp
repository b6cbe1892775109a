// SPDX-License-Identifier: Apache-2.0
// Compile-time checks of hooks: a type with a member of a hook's name that cannot be called as the hook is an error. It
// is never ignored silently.
#pragma once

#include <concepts>
#include <initializer_list>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/contract/hooks.hpp>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace KVPOLICY_NAMESPACE::detail {

/// Accepts a hook that returns any type.
struct anything {
  template <class Result>
  static constexpr bool accepts = true;
};
/// Accepts a hook that returns `Wanted`, or a reference to it.
template <class Wanted>
struct exactly {
  template <class Result>
  static constexpr bool accepts = std::same_as<std::remove_cvref_t<Result>, Wanted>;
};

/// A template that has a hook only for some of its arguments declares `static constexpr bool constrains_hooks = true`.
/// A hook whose requires-clause fails then counts as absent.
template <class T>
concept constrains_hooks = requires {
  requires bool { T::constrains_hooks };
};

/// The form of a hook in T, if it is called with these arguments on a const object.
template <class Hook, class T, class Wanted, class... Args>
consteval hook_form form_of_call() {
  if constexpr (!std::is_class_v<T>) {
    return hook_form::absent;
  } else if constexpr (requires { typename Hook::template result<T const&, Args...>; }) {
    return Wanted::template accepts<typename Hook::template result<T const&, Args...>> ? hook_form::fits
                                                                                       : hook_form::other_result;
  } else if constexpr (!Hook::template names<T>) {
    return hook_form::absent;
  } else if constexpr (Hook::template is_data<T>) {
    return hook_form::data_member;
  } else if constexpr (requires { typename Hook::template result<T&, Args...>; }) {
    return hook_form::not_const;
  } else {
    return constrains_hooks<T> && !Hook::template is_one_function<T> ? hook_form::absent : hook_form::other_parameters;
  }
}

/// The same for a hook that can be called in either of two ways.
constexpr hook_form form_of_either(hook_form first, hook_form second) {
  for (hook_form const wrong : {hook_form::not_const, hook_form::other_result}) {
    if (first == wrong || second == wrong) return wrong;
  }
  return first == hook_form::fits ? first : second;
}

/// The same for a hook whose arguments are not known yet: it only has to be a function.
template <class Hook, class T>
consteval hook_form form_of_function() {
  if constexpr (!std::is_class_v<T>) {
    return hook_form::absent;
  } else if constexpr (!Hook::template names<T>) {
    return std::is_final_v<T> ? hook_form::fits : hook_form::absent;
  } else {
    return Hook::template is_data<T> ? hook_form::data_member : hook_form::fits;
  }
}

/// The same for a static constant. `Fits` says whether it can be read as one.
template <class Hook, class T, bool Fits>
consteval hook_form form_of_constant() {
  if constexpr (!std::is_class_v<T>) {
    return hook_form::absent;
  } else if constexpr (Fits) {
    return hook_form::fits;
  } else if constexpr (constrains_hooks<T> || !Hook::template names<T>) {
    return hook_form::absent;
  } else if constexpr (Hook::template is_own_data<T>) {
    return hook_form::not_static;
  } else {
    return hook_form::other_result;
  }
}

/// The same for a member type, such as `using needs = ...`.
template <class Hook, class T, bool Fits>
consteval hook_form form_of_type() {
  if constexpr (Fits) {
    return hook_form::fits;
  } else if constexpr (!std::is_class_v<T>) {
    return hook_form::absent;
  } else if constexpr (!Hook::template names<T>) {
    return hook_form::absent;
  } else {
    return Hook::template is_data<T> ? hook_form::data_member : hook_form::other_result;
  }
}

/// The same for a data member of any type.
template <class Hook, class T>
consteval hook_form form_of_data() {
  if constexpr (!std::is_class_v<T>) {
    return hook_form::absent;
  } else if constexpr (Hook::template is_data<T>) {
    return hook_form::fits;
  } else {
    return Hook::template names<T> ? hook_form::other_result : hook_form::absent;
  }
}

/// A hook that a type must have, an optional hook, and a law that a type must satisfy.
template <class Hook, hook_form Form>
struct required_hook {
  static constexpr bool sound = Form == hook_form::fits;
  template <class Part>
  static consteval void refuse() {
    Hook::template refuse<Part, Form>();
  }
};
template <class Hook, hook_form Form>
struct optional_hook : required_hook<Hook, Form == hook_form::absent ? hook_form::fits : Form> {};
template <class Hook, bool Holds>
struct law : required_hook<Hook, Holds ? hook_form::fits : hook_form::absent> {};

/// The hooks and laws of a type. `check` gives one compile error, for the first that does not fit, even if it is
/// evaluated twice.
template <class Part, class... Hooks>
struct hooks {
  static constexpr bool sound = (Hooks::sound && ...);

  static consteval bool check() {
    if constexpr (!sound) std::tuple_element_t<first_unsound(), std::tuple<Hooks...>>::template refuse<Part>();
    return true;
  }

 private:
  static consteval std::size_t first_unsound() {
    std::size_t at = 0;
    static_cast<void>(((Hooks::sound && ++at > 0) && ...));
    return at;
  }
};

/// True if all hooks fit. Otherwise it gives one compile error.
template <class Hooks>
consteval bool fits() {
  return Hooks::check() && Hooks::sound;
}

/// The result of a call that has given a compile error. It is declared only.
template <class T>
T refused();

/// The compiler names this struct in the error that a user reads when a scorer reads a signal that is not provided.
template <class Signal, class SignalSet>
struct signal_read {
  static constexpr bool is_provided = SignalSet::template provides<Signal>;
};

/// `as_itself` converts to a T only, and `as_base` to the base classes of T only. With them `compares_as_base` finds
/// out whether `==` compares whole objects or only their bases.
template <class T>
struct as_itself {
  template <std::same_as<T> U>
  operator U const&() const;
};
template <class T>
struct as_base {
  template <class U>
    requires(!std::same_as<U, T> && std::is_base_of_v<U, T>)
  operator U const&() const;
};

template <class T>
inline constexpr bool compares_as_base =
    !requires(T const& a, as_itself<T> const& b) { a == b; } && requires(T const& a, as_base<T> const& b) { a == b; };

template <class T, class... Owners, class... Values>
consteval bool lists_own_fields(std::tuple<field<Owners, Values>...> const*) {
  return sizeof...(Owners) == 0 || (std::same_as<Owners, T> || ...);
}
template <class T, class Call, class... Owners, class... Values>
consteval bool lists_own_fields(field_list<Call, field<Owners, Values>...> const*) {
  return sizeof...(Owners) == 0 || (std::same_as<Owners, T> || ...);
}
template <class T>
consteval bool lists_own_fields(void const*) {
  return true;
}
template <class T>
consteval bool has_own_fields() {
  if constexpr (requires { T::fields(); }) {
    return lists_own_fields<T>(static_cast<decltype(T::fields())*>(nullptr));
  } else {
    return true;
  }
}

template <class T>
concept named_constant = requires { std::string(T::name); } && !hook::part_name::is_own_data<T>;

template <class T>
concept has_fields = requires { T::fields(); };

/// These two say of a class what `std::semiregular` and `std::equality_comparable` do, and compile faster.
template <class T>
concept is_value = requires { T{}; } && std::is_copy_constructible_v<T> && std::is_copy_assignable_v<T>;
template <class T>
concept has_equality = requires(T const& value) {
  { value == value } -> std::convertible_to<bool>;
};

/// The laws of every part of a policy: it is a regular value with its own comparison, name and fields.
template <class Part, class... Hooks>
using part_hooks =
    hooks<Part, Hooks..., law<hook::is_value, is_value<Part>>, law<hook::has_equality, has_equality<Part>>,
          law<hook::own_equality, !compares_as_base<Part>>,
          optional_hook<hook::part_name, form_of_constant<hook::part_name, Part, named_constant<Part>>()>,
          optional_hook<hook::part_fields, form_of_constant<hook::part_fields, Part, has_fields<Part>>()>,
          law<hook::fields_and_name, !has_fields<Part> || described<Part>>,
          law<hook::own_fields, has_own_fields<Part>()>>;

}  // namespace KVPOLICY_NAMESPACE::detail
