// Picks and triggers that are chosen at run time. They are plain values and own no memory.
#pragma once

#include <concepts>
#include <kvpolicy/budget/pick.hpp>
#include <kvpolicy/trigger/trigger.hpp>

namespace KVPOLICY_NAMESPACE {

/// Any of the shipped picks.
struct any_pick {
  enum class kind { top, at_least, lowest_one };
  using erased = void;

  kind what = kind::top;
  at_least threshold{};  ///< of `at_least`

  constexpr any_pick() = default;
  constexpr any_pick(top) {}
  constexpr any_pick(at_least from) : what(kind::at_least), threshold(from) {}
  constexpr any_pick(lowest_one) : what(kind::lowest_one) {}

  /// Calls visit with the pick of its own type.
  template <class Visit>
  void visit(Visit const& visit) const {
    if (what == kind::top) visit(top{});
    if (what == kind::at_least) visit(threshold);
    if (what == kind::lowest_one) visit(lowest_one{});
  }
  void check(char const* call) const {
    if (what == kind::at_least) threshold.check(call);
  }
  friend bool operator==(any_pick const&, any_pick const&) = default;
};

[[nodiscard]] inline std::string print(any_pick const& of) {
  std::string text;
  of.visit([&](auto const& one) { text = to_string(one); });
  return text;
}

/// Any of the shipped triggers.
struct any_trigger {
  enum class kind { over_budget, full_buffer, over_total };
  using erased = void;

  kind what = kind::over_budget;
  int entries = 0;  ///< its parameter

  constexpr any_trigger() = default;
  constexpr any_trigger(over_budget from) : entries(from.slack) {}
  constexpr any_trigger(full_buffer from) : what(kind::full_buffer), entries(from.entries) {}
  constexpr any_trigger(over_total from) : what(kind::over_total), entries(from.entries) {}

  /// Calls visit with the trigger of its own type, and returns what it returns.
  template <class Visit>
  constexpr auto visit(Visit const& visit) const {
    if (what == kind::full_buffer) return visit(full_buffer{entries});
    if (what == kind::over_total) return visit(over_total{entries});
    return visit(over_budget{entries});
  }
  KVPOLICY_HD constexpr bool operator()(int count, int budget) const {
    if (what == kind::full_buffer) return full_buffer{entries}(count, budget);
    if (what == kind::over_total) return over_total{entries}(count, budget);
    return over_budget{entries}(count, budget);
  }
  KVPOLICY_HD constexpr bool operator()(int count, int budget, int lanes) const {
    return what == kind::full_buffer ? full_buffer{entries}(count, budget, lanes) : (*this)(count, budget);
  }
  void check(char const* call) const {
    visit([&](auto const& one) { return one.check(call), true; });
  }
  friend bool operator==(any_trigger const&, any_trigger const&) = default;
};
static_assert(trigger<any_trigger>);

[[nodiscard]] inline std::string print(any_trigger const& of) {
  return of.visit([](auto const& one) { return to_string(one); });
}

}  // namespace KVPOLICY_NAMESPACE
