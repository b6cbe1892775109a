// SPDX-License-Identifier: Apache-2.0
// A verb finds its backend by specialisation of `implementation`. To add a backend, add a folder of specialisations.
#pragma once

#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/contract/hook_checks.hpp>
#include <kvpolicy/core/executor.hpp>
#include <utility>

namespace KVPOLICY_NAMESPACE {

/// The code of a verb for a backend. It is specialised in `ops/BACKEND/FILE.hpp` for the verbs of `ops/FILE.hpp`, or in
/// a header that this file includes. A specialisation has `static ... run(exec, args...)` and, if the verb needs
/// scratch, `static std::size_t scratch(shape const&, int bound)`, which returns the bytes that one worker needs.
template <class Verb, class Backend>
struct implementation {
  using missing = void;
};

/// True if the code of a verb for this backend was included.
template <class Verb, class Backend>
inline constexpr bool is_implemented = !requires { typename implementation<Verb, Backend>::missing; };

namespace detail {

/// Gives one compile error if arguments do not fit the hooks that a verb requires of them (`hooks_of`).
template <class Verb, class... Args>
consteval bool arguments_fit() {
  if constexpr (requires { typename Verb::template hooks_of<Args...>; }) {
    return fits<typename Verb::template hooks_of<Args...>>();
  } else {
    return true;
  }
}

/// The name of a verb in errors that are not its own.
template <class Verb>
consteval char const* name_of_verb() {
  if constexpr (requires { Verb::name; }) {
    return Verb::name;
  } else {
    return "a verb";
  }
}

struct no_range {};

/// What an executor that watches its verbs returns when one begins (see `executor`), or `no_range`.
template <class Executor>
[[nodiscard]] auto range_of(Executor& exec, [[maybe_unused]] char const* verb) {
  if constexpr (requires { exec.range(verb); }) {
    return exec.range(verb);
  } else {
    return no_range{};
  }
}

}  // namespace detail

/// Base of every verb. It checks the arguments in one place, which is the same for every backend, and then runs the
/// backend's code. A verb with a name (`static constexpr auto name`) reads every lane of its arguments. Where the host
/// can read counts, invalid ones are refused before anything is written.
template <class Verb>
struct verb {
  template <executor Executor, class... Args>
  decltype(auto) operator()(Executor& exec, Args&&... args) const {
    using backend = typename Executor::backend;
    static_assert(is_implemented<Verb, backend>,
                  "kvpolicy: this executor's backend has no implementation of this verb; "
                  "include <kvpolicy/ops/BACKEND/FILE.hpp>, where ops/FILE.hpp declares the verb, "
                  "or the umbrella of the backend");
    if constexpr (is_implemented<Verb, backend> && detail::arguments_fit<Verb, std::remove_cvref_t<Args>...>()) {
      detail::sole_use const in_use(detail::name_of_verb<Verb>(), exec);
      Verb::check(args...);
      if constexpr (detail::reads_on_host<backend> && requires { Verb::name; }) {
        (detail::refuse_counts_in(Verb::name, args), ...);
      }
      [[maybe_unused]] auto const range = detail::range_of(exec, detail::name_of_verb<Verb>());
      return implementation<Verb, backend>::run(exec, std::forward<Args>(args)...);
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
