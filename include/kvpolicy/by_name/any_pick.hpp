// SPDX-License-Identifier: Apache-2.0
// Picks and triggers that are chosen at run time.
#pragma once

#include <concepts>
#include <kvpolicy/by_name/user_parts.hpp>
#include <kvpolicy/parts/pick.hpp>
#include <kvpolicy/parts/trigger.hpp>

namespace KVPOLICY_NAMESPACE {

/// Any of the shipped picks, or on the host one of a program's own.
struct any_pick {
  enum class kind { top, at_least, at_least_table, lowest, lowest_one, own };
  using erased = void;

  kind what = kind::top;
  at_least threshold{};                   ///< of `at_least`
  kvpolicy::at_least_table thresholds{};  ///< of `at_least_table`
  kvpolicy::lowest part{};                ///< of `lowest`
  detail::own_pick own{};                 ///< of `own`

  any_pick() = default;
  any_pick(top) {}
  any_pick(at_least from) : what(kind::at_least), threshold(from) {}
  any_pick(kvpolicy::at_least_table from) : what(kind::at_least_table), thresholds(from) {}
  any_pick(kvpolicy::lowest from) : what(kind::lowest), part(from) {}
  any_pick(lowest_one) : what(kind::lowest_one) {}
  explicit any_pick(detail::own_pick const& from) : what(kind::own), own(from) {}

  /// True if an entry's own score decides, and no budget.
  [[nodiscard]] bool by_threshold() const {
    return what == kind::at_least || what == kind::at_least_table || what == kind::own;
  }
  /// True if it says itself how many entries stay, so that there is no budget.
  [[nodiscard]] bool has_no_budget() const { return by_threshold() || what == kind::lowest; }

  /// Calls visit with the pick of its own type.
  template <class Visit>
  void visit(Visit const& visit) const {
    if (what == kind::top) visit(top{});
    if (what == kind::at_least) visit(threshold);
    if (what == kind::at_least_table) visit(thresholds);
    if (what == kind::lowest) visit(part);
    if (what == kind::lowest_one) visit(lowest_one{});
    if (what == kind::own) visit(own.picks);
  }
  void check(char const* call) const {
    if (what == kind::at_least) threshold.check(call);
    if (what == kind::at_least_table) thresholds.check(call);
    if (what == kind::lowest) part.check(call);
    own.check(call);
  }
  friend bool operator==(any_pick const&, any_pick const&) = default;
};

[[nodiscard]] inline std::string print(any_pick const& of) {
  if (of.own.there()) return of.own.spell();
  std::string text;
  of.visit([&](auto const& one) { text = to_string(one); });
  return text;
}

/// Either of the shipped picks that ask about each entry alone: what an admission by name has.
struct any_threshold {
  using erased = void;

  at_least fixed{};          ///< without a table
  at_least_table by_lane{};  ///< of `has_table`
  bool has_table = false;

  any_threshold() = default;
  any_threshold(at_least from) : fixed(from) {}
  any_threshold(at_least_table from) : by_lane(from), has_table(true) {}

  /// Calls visit with the pick of its own type.
  template <class Visit>
  void visit(Visit const& visit) const {
    has_table ? visit(by_lane) : visit(fixed);
  }
  void check(char const* call) const { has_table ? by_lane.check(call) : fixed.check(call); }
  bool operator()(float score, lane of) const { return has_table ? by_lane(score, of) : fixed(score); }
  friend bool operator==(any_threshold const&, any_threshold const&) = default;
};

[[nodiscard]] inline std::string print(any_threshold const& of) {
  return of.has_table ? to_string(of.by_lane) : to_string(of.fixed);
}

namespace detail {

/// The name of a pick, without its numbers.
[[nodiscard]] inline std::string name_of_pick(any_pick const& pick) {
  std::string const text = print(pick);
  return text.substr(0, text.find('('));
}

/// The numbers of a trigger that is chosen at run time, which a decision copies.
struct trigger_numbers {
  enum class kind { over_budget, full_buffer, over_total, every, own };

  kind what = kind::over_budget;
  int entries = 0;                         ///< its parameter
  host_call<bool, int, int, int> fires{};  ///< of `own`
  host_call<bool, int> dues{};             ///< of `own`

  KVPOLICY_HD constexpr bool operator()(int count, int budget) const {
    if (what == kind::full_buffer) return full_buffer{entries}(count, budget);
    if (what == kind::over_total) return over_total{entries}(count, budget);
    if (what == kind::every) return kvpolicy::every{entries}(count, budget);
    if (fires.there()) return fires(count, budget, 0);
    return over_budget{entries}(count, budget);
  }
  KVPOLICY_HD constexpr bool operator()(int count, int budget, int lanes) const {
    if (fires.there()) return fires(count, budget, lanes);
    return what == kind::full_buffer ? full_buffer{entries}(count, budget, lanes) : (*this)(count, budget);
  }
  [[nodiscard]] KVPOLICY_HD constexpr bool is_always_due() const { return what != kind::every && !dues.there(); }
  [[nodiscard]] KVPOLICY_HD constexpr bool due(int newest) const {
    if (dues.there()) return dues(newest);
    return what != kind::every || kvpolicy::every{entries}.due(newest);
  }
  friend bool operator==(trigger_numbers const&, trigger_numbers const&) = default;
};

}  // namespace detail

/// Any of the shipped triggers, or on the host one of a program's own.
struct any_trigger : private detail::trigger_numbers {
  using kind = detail::trigger_numbers::kind;
  using erased = void;
  using trigger_numbers::due;
  using trigger_numbers::entries;
  using trigger_numbers::what;
  using trigger_numbers::operator();
  detail::own_trigger own{};  ///< of `own`

  any_trigger() = default;
  any_trigger(over_budget from) : trigger_numbers{kind::over_budget, from.slack} {}
  any_trigger(full_buffer from) : trigger_numbers{kind::full_buffer, from.entries} {}
  any_trigger(over_total from) : trigger_numbers{kind::over_total, from.entries} {}
  any_trigger(every from) : trigger_numbers{kind::every, from.steps} {}
  explicit any_trigger(detail::own_trigger const& from)
      : trigger_numbers{kind::own, 0, from.fires, from.dues}, own(from) {}

  /// What a decision calls.
  [[nodiscard]] detail::trigger_numbers compiled() const { return *this; }
  void check(char const* call) const {
    if (what == kind::over_budget) over_budget{entries}.check(call);
    if (what == kind::full_buffer) full_buffer{entries}.check(call);
    if (what == kind::over_total) over_total{entries}.check(call);
    if (what == kind::every) kvpolicy::every{entries}.check(call);
    own.check(call);
  }
  friend bool operator==(any_trigger const& a, any_trigger const& b) {
    return a.what == b.what && a.entries == b.entries && a.own == b.own;
  }
};

[[nodiscard]] inline std::string print(any_trigger const& of) {
  if (of.what == any_trigger::kind::own) return of.own.spell();
  if (of.what == any_trigger::kind::full_buffer) return to_string(full_buffer{of.entries});
  if (of.what == any_trigger::kind::over_total) return to_string(over_total{of.entries});
  if (of.what == any_trigger::kind::every) return to_string(every{of.entries});
  return to_string(over_budget{of.entries});
}

}  // namespace KVPOLICY_NAMESPACE
