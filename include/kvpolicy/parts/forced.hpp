// SPDX-License-Identifier: Apache-2.0
// Protections of what scorers force: both ends of a lane, whose lengths may follow from the budget or from the number
// of entries, and the span of a turn.
#pragma once

#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/parts/protect.hpp>

namespace KVPOLICY_NAMESPACE {

/// Protects the last `recent` entries. If `recent` is -1, it is the budget less `heavy`; if `heavy` is -1, it is half
/// of the budget.
struct recent_of_budget {
  int heavy;
  int recent;
  KVPOLICY_HD std::int64_t window(int budget) const {
    std::int64_t const others = heavy >= 0 ? heavy : budget / 2;
    return recent >= 0 ? recent : budget - others;
  }
  KVPOLICY_HD bool operator()(entry at) const { return at.ordinal >= at.count - window(at.budget); }
  KVPOLICY_HD ordinal_range candidates(lane_entries const& of) const {
    std::int64_t const end = of.count - window(of.budget);
    return {0, static_cast<int>(end < 0 ? 0 : end < of.count ? end : of.count)};
  }
  friend bool operator==(recent_of_budget const&, recent_of_budget const&) = default;
};

/// Protects the first `sinks` positions and the last `window` entries. A `window` of -1 stands for 2 % of the entries
/// of a lane that holds fewer than 32,000, and for 4,096 in a longer one.
struct ends_of_count {
  int sinks;
  int window;
  [[nodiscard]] KVPOLICY_HD int last(int count) const {
    if (window >= 0) return window;
    return count >= 32000 ? 4096 : static_cast<int>(0.02 * count);
  }
  KVPOLICY_HD bool operator()(entry at) const { return safe{sinks, last(at.count)}(at); }
  KVPOLICY_HD ordinal_range candidates(lane_entries const& of) const {
    return safe{sinks, last(of.count)}.candidates(of);
  }
  friend bool operator==(ends_of_count const&, ends_of_count const&) = default;
};

/// Protects the last entries of a lane: the part `part` of those that it holds, at least one. In a lane of more than
/// `long_from` entries it is the part `long_part`.
struct last_part {
  double part;
  double long_part = 0;
  int long_from = 0x7FFFFFFF;
  [[nodiscard]] KVPOLICY_HD int last(int count) const {
    int const some = detail::floor_of_part(count > long_from ? long_part : part, count);
    return some > 1 ? some : 1;
  }
  KVPOLICY_HD bool operator()(entry at) const { return at.ordinal >= at.count - last(at.count); }
  KVPOLICY_HD ordinal_range candidates(lane_entries const& of) const { return {0, of.count - last(of.count)}; }
  friend bool operator==(last_part const&, last_part const&) = default;
};

/// Protects the first `first` and the last `last` entries that a lane holds, wherever they stand in the sequence.
struct first_and_last {
  int first;
  int last;
  KVPOLICY_HD bool operator()(entry at) const { return at.ordinal < first || at.count - at.ordinal <= last; }
  KVPOLICY_HD ordinal_range candidates(lane_entries const& of) const { return {first, of.count - last}; }
  friend bool operator==(first_and_last const&, first_and_last const&) = default;
};

/// Protects the first `first` entries of a lane, the last whole one of the blocks of `lag` entries that follow them,
/// and what follows that block. In a lane of fewer than two blocks it protects the first entries only.
struct around_blocks {
  int first;
  int lag;
  [[nodiscard]] KVPOLICY_HD int last(int count) const {
    int const whole = count > first ? (count - first) / lag : 0;
    return whole > 1 ? count - first - (whole - 1) * lag : 0;
  }
  KVPOLICY_HD bool operator()(entry at) const { return first_and_last{first, last(at.count)}(at); }
  KVPOLICY_HD ordinal_range candidates(lane_entries const& of) const { return {first, of.count - last(of.count)}; }
  friend bool operator==(around_blocks const&, around_blocks const&) = default;
};

/// Protects the first `prefix` positions, and the positions of a turn's last `tail` query rows.
struct prefix_and_span {
  int prefix;
  int tail;
  turn_queries turn;
  KVPOLICY_HD bool operator()(entry at) const {
    if (at.position < prefix) return true;
    ordinal_range const rows = turn.span(at.lane, tail);
    return rows.begin < rows.end && at.position >= turn.position_of(at.lane, rows.begin) &&
           at.position <= turn.position_of(at.lane, rows.end - 1);
  }
};

}  // namespace KVPOLICY_NAMESPACE
