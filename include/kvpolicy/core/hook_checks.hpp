// What a type makes of a hook: one that it has, but that cannot be called as the hook, is an error, not silence.
#pragma once

#include <concepts>
#include <initializer_list>
#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/core/hooks.hpp>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace KVPOLICY_NAMESPACE::detail {

/// What a call may return.
struct anything {
  template <class Result>
  static constexpr bool accepts = true;
};
template <class Wanted>
struct exactly {
  template <class Result>
  static constexpr bool accepts = std::same_as<std::remove_cvref_t<Result>, Wanted>;
};

/// A type that has hooks for some arguments of its template only says so (`static constexpr bool constrains_hooks =
/// true`): one whose requires-clause fails is absent.
template <class T>
concept constrains_hooks = requires {
  requires bool { T::constrains_hooks };
};

/// What T makes of a hook that is called with these arguments on a const object.
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

/// The same of a hook that is called in either of two ways.
constexpr hook_form form_of_either(hook_form first, hook_form second) {
  for (hook_form const wrong : {hook_form::not_const, hook_form::other_result}) {
    if (first == wrong || second == wrong) return wrong;
  }
  return first == hook_form::fits ? first : second;
}

/// The same of a hook whose arguments are known later only: here it need not be more than a function.
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

/// The same of a static constant. `Fits`: it can be read as one.
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

/// The same of a type, `using needs = ...`.
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

/// The same of a data member, of any type.
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

/// A hook, and what a type makes of it.
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

/// Of a type's hooks the first that does not fit is one error; evaluated twice it is still one.
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

/// One error if they do not fit; true if they do.
template <class Hooks>
consteval bool fits() {
  return Hooks::check() && Hooks::sound;
}

/// What a call returns that was refused when it was compiled.
template <class T>
T refused();

/// The name of this struct is the error that a user reads when a signal is read that is not there.
template <class Signal, class Bag>
struct signal_read {
  static constexpr bool is_provided = Bag::template provides<Signal>;
};

/// Converts to a T and to nothing else, or to its bases alone: tells whose comparison `==` finds.
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

/// What holds of every part of a policy: it is a value of its own, and prints as such.
template <class Part, class... Hooks>
using part_hooks =
    hooks<Part, Hooks..., law<hook::is_value, std::semiregular<Part>>,
          law<hook::has_equality, std::equality_comparable<Part>>, law<hook::own_equality, !compares_as_base<Part>>,
          optional_hook<hook::part_name, form_of_constant<hook::part_name, Part, named_constant<Part>>()>,
          optional_hook<hook::part_fields, form_of_constant<hook::part_fields, Part, has_fields<Part>>()>,
          law<hook::fields_and_name, !has_fields<Part> || described<Part>>,
          law<hook::own_fields, has_own_fields<Part>()>>;

}  // namespace KVPOLICY_NAMESPACE::detail
