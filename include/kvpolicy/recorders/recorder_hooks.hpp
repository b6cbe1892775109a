// SPDX-License-Identifier: Apache-2.0
// The requirements on a recorder. A recorder that does not fit causes one error, which names the member.
#pragma once

#include <kvpolicy/core/contract/hook_checks.hpp>
#include <kvpolicy/core/state.hpp>

namespace KVPOLICY_NAMESPACE::detail {

template <class R>
concept says_what_it_reads = requires { typename R::needs; };
template <class R>
concept says_what_it_keeps = requires { typename R::provides; };

struct some_columns {
  template <class Result>
  static constexpr bool accepts = requires(Result made) {
    { made.size() } -> std::convertible_to<std::size_t>;
    { *made.begin() } -> std::convertible_to<column const&>;
  };
};
template <class R>
struct provided_by {
  template <class Result>
  static constexpr bool accepts = requires { requires std::same_as<Result, typename R::provides>; };
};
template <class R>
concept says_known_at_append =
    !hook::recorder_known_at_append::is_own_data<R> && requires { typename std::bool_constant<R::known_at_append>; };
template <class R>
concept says_of_entries =
    !hook::recorder_of_entries::is_own_data<R> && requires { typename std::bool_constant<R::of_entries>; };

/// The requirements on a recorder that can be checked before the executor and the signals are known.
template <class R>
using recorder_hooks = hooks<
    R, law<hook::recorder_is_value, std::regular<R>>, law<hook::recorder_own_equality, !compares_as_base<R>>,
    required_hook<hook::recorder_needs, form_of_type<hook::recorder_needs, R, says_what_it_reads<R>>()>,
    required_hook<hook::recorder_provides, form_of_type<hook::recorder_provides, R, says_what_it_keeps<R>>()>,
    required_hook<hook::recorder_columns, form_of_call<hook::recorder_columns, R, some_columns, shape const&, int>()>,
    required_hook<hook::recorder_view, form_of_call<hook::recorder_view, R, provided_by<R>, recorded_columns const&>()>,
    required_hook<hook::recorder_observe, form_of_function<hook::recorder_observe, R>()>,
    optional_hook<hook::recorder_forget, form_of_function<hook::recorder_forget, R>()>,
    optional_hook<hook::recorder_refuse_part, form_of_function<hook::recorder_refuse_part, R>()>,
    optional_hook<hook::recorder_of_entries, form_of_constant<hook::recorder_of_entries, R, says_of_entries<R>>()>,
    optional_hook<hook::recorder_known_at_append,
                  form_of_constant<hook::recorder_known_at_append, R, says_known_at_append<R>>()>>;

/// The requirements that can be checked once both are known. `forget` is checked where a recorder is added to a state.
template <class R, class Executor, class Given>
using observing_hooks =
    hooks<R, required_hook<hook::recorder_observe, form_of_call<hook::recorder_observe, R, anything, Executor&,
                                                                Given const&, recorded_columns const&>()>>;

}  // namespace KVPOLICY_NAMESPACE::detail
