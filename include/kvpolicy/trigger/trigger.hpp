// Triggers: when a decision drops anything at all.
#pragma once

#include <concepts>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/core/hook_checks.hpp>

namespace KVPOLICY_NAMESPACE {

/// A trigger is a regular function object of the number of entries and the budget.
template <class T>
concept trigger = std::regular<T> && requires(T const& t, int count, int budget) {
  { t(count, budget) } -> std::same_as<bool>;
};

namespace detail {

struct a_trigger {
  template <class Result>
  static constexpr bool accepts = requires(std::remove_cvref_t<Result> const& made, int count) {
    { made(count, count) } -> std::same_as<bool>;
  };
};

/// What a decision asks of a trigger. `check()` is the one error that a user reads of one that does not fit.
template <class T>
using trigger_hooks = part_hooks<
    T, law<hook::trigger_is_number, !std::is_arithmetic_v<T>>,
    required_hook<hook::trigger_call,
                  trigger<T> ? hook_form::fits : form_of_call<hook::trigger_call, T, exactly<bool>, int, int>()>,
    optional_hook<hook::trigger_check, form_of_call<hook::trigger_check, T, anything, char const*>()>>;

}  // namespace detail

/// When more than budget + slack entries are there; then down to the budget. At the budget nothing moves.
struct over_budget {
  int slack = 0;
  static constexpr auto name = "over_budget";
  static constexpr auto fields() { return std::tuple{field{"", &over_budget::slack}}; }
  void check(char const* call) const {
    expects(slack >= 0, call, "over_budget.slack", slack, "a count cannot be negative");
  }
  KVPOLICY_HD constexpr bool operator()(int count, int budget) const { return count - budget > slack; }
  friend bool operator==(over_budget const&, over_budget const&) = default;
};

/// When more than `entries` are there, of all lanes that share a budget together.
struct over_total {
  int entries = 1 << 20;
  static constexpr auto name = "over_total";
  static constexpr auto fields() { return std::tuple{field{"", &over_total::entries}}; }
  void check(char const* call) const {
    expects(entries >= 0, call, "over_total.entries", entries, "a count cannot be negative");
  }
  KVPOLICY_HD constexpr bool operator()(int count, int budget) const { return count > entries && count > budget; }
  friend bool operator==(over_total const&, over_total const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
