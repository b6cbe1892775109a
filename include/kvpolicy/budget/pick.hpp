// Picks: which of the scored entries stay.
#pragma once

#include <cmath>
#include <concepts>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/core/hook_checks.hpp>

namespace KVPOLICY_NAMESPACE {

/// Keep the best, up to the budget.
struct top {
  static constexpr auto name = "top";
  static constexpr auto fields() { return std::tuple{}; }
  friend bool operator==(top const&, top const&) = default;
};

/// Drop one entry a decision, the lowest: what decoding needs that adds one entry a step. The keep set lists what is
/// dropped, and `overwrite` carries it out.
struct lowest_one {
  static constexpr auto name = "lowest_one";
  static constexpr auto fields() { return std::tuple{}; }
  friend bool operator==(lowest_one const&, lowest_one const&) = default;
};

/// Keep what scores enough, however many that are: there is no budget. A NaN is never enough.
struct at_least {
  float least = 0.1f;
  bool strict = false;     ///< more than `least`, not as much
  bool unbounded = false;  ///< `least` may lie outside 0 to 1, where gates do not
  static constexpr auto name = "at_least";
  static constexpr auto fields() {
    return std::tuple{field{"least", &at_least::least}, field{"strict", &at_least::strict},
                      field{"unbounded", &at_least::unbounded}};
  }
  void check(char const* call) const {
    expects(!std::isnan(least), call, "at_least.least", least, "scores are compared with it");
    expects(unbounded || (least >= 0 && least <= 1), call, "at_least.least", least,
            "gates lie between 0 and 1: say `unbounded` for other scores");
  }
  KVPOLICY_HD constexpr bool operator()(float score) const { return strict ? score > least : score >= least; }
  friend bool operator==(at_least const&, at_least const&) = default;
};

/// A pick by the score alone, whatever the others score.
template <class P>
concept threshold = std::regular<P> && requires(P const& p, float score) {
  { p(score) } -> std::same_as<bool>;
};

namespace detail {

/// What a decision asks of a pick. `check()` is the one error that a user reads of one that does not fit.
template <class P>
using pick_hooks =
    part_hooks<P, law<hook::pick_is_number, !std::is_arithmetic_v<P>>,
               required_hook<hook::pick_call, std::same_as<P, top> || std::same_as<P, lowest_one> || threshold<P>
                                                  ? hook_form::fits
                                                  : form_of_call<hook::pick_call, P, exactly<bool>, float>()>,
               optional_hook<hook::pick_check, form_of_call<hook::pick_check, P, anything, char const*>()>>;

}  // namespace detail

}  // namespace KVPOLICY_NAMESPACE
