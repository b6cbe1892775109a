// SPDX-License-Identifier: Apache-2.0
// A budget that is a part of the tokens that a sequence has had.
#pragma once

#include <kvpolicy/ops/map_lanes.hpp>
#include <kvpolicy/parts/allot.hpp>

namespace KVPOLICY_NAMESPACE {

/// Keeps the part 1 - `drop` of the tokens that a sequence has had so far: of all positions up to that of the newest
/// entry, those of dropped entries included. So it grows with the sequence, and decisions in every step do not
/// multiply.
///
///     share = floor((newest position + 1) * (1 - drop))          rounded as `round` says
struct seen {
  double drop = 0.5;
  rounding round = rounding::at_least_one;
  static constexpr auto name = "budget";
  void check(char const* call) const { drop_ratio{drop, round}.check(call); }

  /// The share of a lane whose entries are all that it has had.
  KVPOLICY_HD constexpr int operator()(lane, int count) const { return detail::kept_of_ratio(drop, round, count); }
  /// The share of a lane.
  KVPOLICY_HD constexpr int operator()(lane_entries const& of) const {
    return detail::kept_of_ratio(drop, round, of.order.newest_of(of.position, of.count) + 1);
  }
  /// - cost: O(lanes).
  template <class Executor, class SignalSet>
  void allot(Executor& exec, SignalSet const& in, score_view const&, by_lane<int> const& shares) const {
    ops::map_lanes(exec, in.lanes, *this, shares);
  }
  friend bool operator==(seen const&, seen const&) = default;
};

[[nodiscard]] inline std::string print(seen const& limit) {
  std::string const text = print(drop_ratio{limit.drop, limit.round});
  return text.substr(0, text.size() - 1) + ", by=seen)";
}

namespace detail {

/// A ratio in the decisions of a policy: of the tokens that a sequence has had, or of the entries that a lane holds.
struct counted_ratio {
  drop_ratio part{};
  bool of_seen = false;
  by_lane<int const> shares{};  ///< those that are allotted

  KVPOLICY_HD constexpr int operator()(lane this_lane, int count) const {
    return shares.data != nullptr ? *shares.row(this_lane) : part(this_lane, count);
  }
  [[nodiscard]] constexpr bool is_allotted() const { return of_seen; }
  template <class Executor, class SignalSet>
  void allot(Executor& exec, SignalSet const& in, score_view const& scores, by_lane<int> const& to) const {
    seen{part.drop, part.round}.allot(exec, in, scores, to);
  }
  [[nodiscard]] constexpr counted_ratio with_shares(by_lane<int> const& to) const {
    return {part, of_seen, {to.data, to.sequence, to.layer, to.head, to.slots}};
  }
};

/// A budget as the decisions of a policy count it, which decides several times in a sequence or once (`again`).
template <class Budget>
constexpr auto counted_budget(Budget const& limit, [[maybe_unused]] bool again) {
  if constexpr (std::same_as<Budget, drop_ratio>) {
    return counted_ratio{limit, again && !limit.held};
  } else if constexpr (requires { limit.counted(again); }) {
    return limit.counted(again);
  } else {
    return limit;
  }
}

}  // namespace detail

}  // namespace KVPOLICY_NAMESPACE
