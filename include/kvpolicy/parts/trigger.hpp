// SPDX-License-Identifier: Apache-2.0
// Triggers decide when a decision drops entries.
#pragma once

#include <concepts>
#include <cstdint>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/contract/hook_checks.hpp>

namespace KVPOLICY_NAMESPACE {

/// A trigger is a regular function object `bool(int count, int budget)`, called with the number of entries and the
/// budget. If lanes share a budget, both numbers are sums over the lanes of the pool.
///
/// Optional: `bool(int count, int budget, int lanes)`, which is called instead if lanes share a budget. A trigger whose
/// parameter is a number of entries of one lane can multiply it by the number of `lanes` of the pool. And
/// `bool due(int newest)`: false if nothing happens when the newest position of a lane is this one.
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

/// The hooks of a trigger. `check()` gives the one compile error for a trigger that does not fit.
template <class T>
using trigger_hooks = part_hooks<
    T, law<hook::trigger_is_number, !std::is_arithmetic_v<T>>,
    required_hook<hook::trigger_call,
                  trigger<T> ? hook_form::fits : form_of_call<hook::trigger_call, T, exactly<bool>, int, int>()>,
    optional_hook<hook::trigger_check, form_of_call<hook::trigger_check, T, anything, char const*>()>>;

}  // namespace detail

/// Fires when a lane has more than budget + slack entries. The decision then keeps as many as the budget allows, so
/// with exactly that many entries nothing moves. If lanes share a budget, the slack is that of the whole pool.
struct over_budget {
  int slack = 0;
  static constexpr auto name = "over_budget";
  static constexpr auto fields() { return make_fields(field{"", &over_budget::slack}); }
  void check(char const* call) const {
    expects(slack >= 0, call, "over_budget.slack", slack, "a count cannot be negative");
  }
  KVPOLICY_HD constexpr bool operator()(int count, int budget) const { return count - budget > slack; }
  friend bool operator==(over_budget const&, over_budget const&) = default;
};

/// Fires when a lane has at least `entries` entries more than its budget. If lanes share a budget, their buffers count
/// as one, as in TRIM-KV's released code: it fires when the pool has at least lanes * (budget of a lane + `entries`)
/// entries.
struct full_buffer {
  int entries = 1;
  static constexpr auto name = "full_buffer";
  static constexpr auto fields() { return make_fields(field{"", &full_buffer::entries}); }
  void check(char const* call) const {
    expects(entries >= 1, call, "full_buffer.entries", entries, "at the budget nothing moves");
  }
  KVPOLICY_HD constexpr bool operator()(int count, int budget) const { return (*this)(count, budget, 1); }
  KVPOLICY_HD constexpr bool operator()(int count, int budget, int lanes) const {
    return std::int64_t{count} - budget >= std::int64_t{entries} * lanes;
  }
  friend bool operator==(full_buffer const&, full_buffer const&) = default;
};

/// Fires when all lanes that share a budget have more than `entries` entries together, and more than their budget.
struct over_total {
  int entries = 1 << 20;
  static constexpr auto name = "over_total";
  static constexpr auto fields() { return make_fields(field{"", &over_total::entries}); }
  void check(char const* call) const {
    expects(entries >= 0, call, "over_total.entries", entries, "a count cannot be negative");
  }
  KVPOLICY_HD constexpr bool operator()(int count, int budget) const { return count > entries && count > budget; }
  friend bool operator==(over_total const&, over_total const&) = default;
};

/// Fires for a lane above its budget each time that the position after its newest token is a multiple of `steps`, so
/// that it decides every so many decode steps.
struct every {
  int steps = 1;
  static constexpr auto name = "every";
  static constexpr auto fields() { return make_fields(field{"", &every::steps}); }
  void check(char const* call) const { expects(steps >= 1, call, "every.steps", steps, "an interval is 1 or more"); }
  KVPOLICY_HD constexpr bool operator()(int count, int budget) const { return count > budget; }
  [[nodiscard]] KVPOLICY_HD constexpr bool due(int newest) const { return (std::int64_t{newest} + 1) % steps == 0; }
  friend bool operator==(every const&, every const&) = default;
};

namespace detail {

/// A trigger to which the newest position of a lane matters.
template <class Trigger>
concept timed = requires(Trigger const& when, int newest) {
  { when.due(newest) } -> std::same_as<bool>;
};
/// True if the position does not matter to a trigger that is chosen at run time.
template <class Trigger>
[[nodiscard]] KVPOLICY_HD constexpr bool is_always_due(Trigger const& when) {
  if constexpr (requires { when.is_always_due(); }) {
    return when.is_always_due();
  } else {
    return !timed<Trigger>;
  }
}
/// True if a trigger may fire at a position.
template <class Trigger>
[[nodiscard]] KVPOLICY_HD constexpr bool is_due(Trigger const& when, int newest) {
  if constexpr (timed<Trigger>) {
    return when.due(newest);
  } else {
    return true;
  }
}

/// True if a trigger fires for a pool of lanes. It calls the form with `lanes` if the trigger has one.
template <class Trigger>
[[nodiscard]] KVPOLICY_HD constexpr bool fires_in_pool(Trigger const& when, int count, int budget, int lanes) {
  if constexpr (requires { when(count, budget, lanes); }) {
    return when(count, budget, lanes);
  } else {
    return when(count, budget);
  }
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
