// Budgets: how many entries survive, forced ones included.
#pragma once

#include <concepts>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/core/lanes.hpp>

namespace KVPOLICY_NAMESPACE {

/// A budget is a regular function object: how many of `count` entries a lane may keep.
template <class B>
concept budget = std::regular<B> && requires(B const& b, lane who, int count) {
  { b(who, count) } -> std::same_as<int>;
};

/// `tokens` entries for every lane; all heads of a layer, or all lanes of a token, when they decide together.
struct per_lane {
  int tokens = 1024;
  static constexpr auto name = "budget";
  static constexpr auto fields() { return std::tuple{field{"", &per_lane::tokens}}; }
  void check(char const* call) const {
    expects(tokens >= 0, call, "budget.tokens", tokens, "a count cannot be negative");
  }
  KVPOLICY_HD constexpr int operator()(lane, int) const { return tokens; }
  friend bool operator==(per_lane const&, per_lane const&) = default;
};

/// No limit: nothing is ever dropped.
struct unlimited {
  static constexpr auto name = "unlimited";
  static constexpr auto fields() { return std::tuple{}; }
  KVPOLICY_HD constexpr int operator()(lane, int) const { return 0x7FFFFFFF; }
  friend bool operator==(unlimited const&, unlimited const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
