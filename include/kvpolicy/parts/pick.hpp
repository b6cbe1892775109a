// SPDX-License-Identifier: Apache-2.0
// Picks decide which of the scored entries are kept.
#pragma once

#include <cmath>
#include <concepts>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/contract/hook_checks.hpp>
#include <kvpolicy/core/label.hpp>
#include <kvpolicy/core/lanes.hpp>

namespace KVPOLICY_NAMESPACE {

/// Keeps the entries with the highest scores, up to the budget.
struct top {
  static constexpr auto name = "top";
  static constexpr auto fields() { return make_fields(); }
  friend bool operator==(top const&, top const&) = default;
};

/// Drops the entry with the lowest score of each lane whose trigger fires: one entry in each decision. It suits
/// decoding, which adds one entry in each step. The keep set lists the dropped entry, and `overwrite` carries the
/// decision out.
struct lowest_one {
  static constexpr auto name = "lowest_one";
  static constexpr auto fields() { return make_fields(); }
  friend bool operator==(lowest_one const&, lowest_one const&) = default;
};

/// Drops a part of the entries that compete, those with the lowest scores: floor(part * n) of n. Where entries are in
/// blocks (the stage `blocks`), it is a part of the whole blocks. The trigger says when; there is no budget. The budget
/// `lowest_part` counts forced entries, too, and with it all lanes of a sequence trigger together.
struct lowest {
  double part = 0.5;
  static constexpr auto name = "lowest";
  static constexpr auto fields() { return make_fields(field{"part", &lowest::part}); }
  void check(char const* call) const {
    expects(part >= 0 && part <= 1, call, "lowest.part", part, "a part is dropped, 0 to 1");
  }
  friend bool operator==(lowest const&, lowest const&) = default;
};

/// Keeps the entries whose score is at least `least`, however many they are: there is no budget. Entries with a NaN as
/// score are not kept.
struct at_least {
  float least = 0.1f;
  bool strict = false;     ///< true: the score must be greater than `least`
  bool unbounded = false;  ///< true: `least` may be outside 0 to 1, the range of gates
  static constexpr auto name = "at_least";
  static constexpr auto fields() {
    return make_fields(field{"least", &at_least::least}, field{"strict", &at_least::strict},
                       field{"unbounded", &at_least::unbounded});
  }
  void check(char const* call) const {
    expects(!std::isnan(least), call, "at_least.least", least, "scores are compared with it");
    expects(unbounded || (least >= 0 && least <= 1), call, "at_least.least", least,
            "gates lie between 0 and 1: say `unbounded` for other scores");
  }
  KVPOLICY_HD constexpr bool operator()(float score) const { return strict ? score > least : score >= least; }
  friend bool operator==(at_least const&, at_least const&) = default;
};

/// Keeps the entries whose score is at least the number that a table of the model has for their lane, or for their
/// layer. Lanes that decide together go by the number of the first one. An entry with a NaN as score or as threshold is
/// not kept.
struct at_least_table {
  label table{};                      ///< the name of the table in specs
  bool strict = false;                ///< true: the score must be greater than the number
  by_lane<float const> thresholds{};  ///< that table, in memory that the executor can read
  static constexpr auto name = "at_least_table";
  static constexpr auto fields() {
    return make_fields(field{"table", &at_least_table::table}, field{"strict", &at_least_table::strict});
  }
  /// Takes the table that `table` names, when a spec is read.
  void use_table(by_lane<float const> const& named) { thresholds = named; }
  void check(char const* call) const {
    expects(thresholds.data != nullptr, call, "at_least_table.table", "null", "scores are compared with its numbers");
  }
  KVPOLICY_HD constexpr bool operator()(float score, lane of) const {
    float const least = *thresholds.row(of);
    return strict ? score > least : score >= least;
  }
  friend bool operator==(at_least_table const& a, at_least_table const& b) {
    return a.table == b.table && a.strict == b.strict && a.thresholds.data == b.thresholds.data;
  }
};

namespace detail {

/// A pick that also asks which lane an entry belongs to.
template <class P>
concept threshold_of_lane = requires(P const& p, float score, lane of) {
  { p(score, of) } -> std::same_as<bool>;
};

}  // namespace detail

/// A pick that depends on an entry's own score and its lane only, and not on the scores of other entries:
/// `bool(float score)`, or `bool(float score, lane)`.
template <class P>
concept threshold = std::regular<P> && (detail::threshold_of_lane<P> || requires(P const& p, float score) {
                      { p(score) } -> std::same_as<bool>;
                    });

namespace detail {

/// Whether a pick by threshold takes a score of a lane.
template <threshold P>
[[nodiscard]] KVPOLICY_HD constexpr bool takes(P const& pick, float score, [[maybe_unused]] lane const& of) {
  if constexpr (threshold_of_lane<P>) {
    return pick(score, of);
  } else {
    return pick(score);
  }
}

/// A pick that is chosen at run time: its member `visit` passes the one that it stands for.
template <class P>
concept erased_pick = requires { typename P::erased; };

/// True for a pick that drops a part of what is there, whatever the budget.
template <class P>
inline constexpr bool drops_part = std::same_as<P, lowest>;

/// The budget with which a trigger is asked. Without a limit a pick of a part would never wait for anything.
template <class P>
[[nodiscard]] KVPOLICY_HD constexpr int budget_for_trigger(int allowed) {
  return drops_part<P> && allowed == 0x7FFFFFFF ? 0 : allowed;
}

/// The hooks of a pick. `check()` gives the one compile error for a pick that does not fit.
template <class P>
using pick_hooks =
    part_hooks<P, law<hook::pick_is_number, !std::is_arithmetic_v<P>>,
               required_hook<hook::pick_call, std::same_as<P, top> || std::same_as<P, lowest> ||
                                                      std::same_as<P, lowest_one> || threshold<P> || erased_pick<P>
                                                  ? hook_form::fits
                                                  : form_of_call<hook::pick_call, P, exactly<bool>, float>()>,
               optional_hook<hook::pick_check, form_of_call<hook::pick_check, P, anything, char const*>()>>;

}  // namespace detail

}  // namespace KVPOLICY_NAMESPACE
