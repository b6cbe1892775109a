// A budget that is a part of the tokens that a sequence has had.
#pragma once

#include <kvpolicy/budget/allot.hpp>
#include <kvpolicy/ops/map_lanes.hpp>

namespace KVPOLICY_NAMESPACE {

/// Keeps the part 1 - `drop` of the tokens that a sequence has had so far: of all positions up to that of the newest
/// entry, those of dropped entries included. A `drop_ratio` is a part of the entries that are left, so that decisions
/// in every step multiply; this budget grows with the sequence.
///
///     share = floor((newest position + 1) * (1 - drop))
struct seen {
  double drop = 0.5;
  rounding round = rounding::exact;
  static constexpr auto name = "budget";
  void check(char const* call) const { drop_ratio{drop, round}.check(call); }

  /// The share of a lane whose entries are all that it has had.
  KVPOLICY_HD constexpr int operator()(lane, int count) const { return detail::kept_of_ratio(drop, round, count); }
  /// The share of a lane.
  KVPOLICY_HD constexpr int operator()(lane_entries const& of) const {
    return detail::kept_of_ratio(drop, round, of.order.newest_of(of.position, of.count) + 1);
  }
  /// - cost: O(lanes).
  template <class Executor, class Bag>
  void allot(Executor& exec, Bag const& in, score_view const&, by_lane<int> const& shares) const {
    ops::map_lanes(exec, in.lanes, *this, shares);
  }
  friend bool operator==(seen const&, seen const&) = default;
};

[[nodiscard]] inline std::string print(seen const& limit) {
  std::string const text = print(drop_ratio{limit.drop, limit.round});
  return text.substr(0, text.size() - 1) + ", by=seen)";
}

}  // namespace KVPOLICY_NAMESPACE
