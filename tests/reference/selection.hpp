// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "basics.hpp"

namespace kvpolicy_reference {

using flags = std::vector<bool>;

/// What a decision keeps in one lane, and what its report says.
struct selection {
  std::vector<int> kept;       ///< ordinals, ascending
  int nan_candidates = 0;      ///< NaN scores among the entries that had to compete; 0 if the trigger did not fire
  int forced_over_budget = 0;  ///< how many forced entries the budget had no room for
};

/// The same over several lanes that share one budget.
struct pooled_selection {
  std::vector<std::vector<int>> kept;  ///< [lanes], ordinals, ascending
  int nan_candidates = 0;
  int forced_over_budget = 0;
};

/// Whether score `a` ranks strictly above `b`: NaN below everything, -inf included; -0.0 equal to +0.0.
inline bool outranks(double a, double b) {
  if (std::isnan(a)) return false;
  if (std::isnan(b)) return true;
  return a > b;
}

inline int count_of(flags const& marked) { return static_cast<int>(std::count(marked.begin(), marked.end(), true)); }

/// Flags of `count` entries with the first `first` and the last `last` of them set: sinks and a recent window.
inline flags ends(int count, int first, int last) {
  flags result;
  for (int j = 0; j < count; ++j) result.push_back(j < first || j >= count - last);
  return result;
}

inline std::vector<int> every_ordinal(std::size_t count) {
  std::vector<int> result;
  for (std::size_t j = 0; j < count; ++j) result.push_back(static_cast<int>(j));
  return result;
}

/// Fires strictly above the budget and the extra entries that are tolerated before a decision is worth its cost.
inline bool fires(std::size_t count, int budget, int slack) {
  require(budget >= 0 && slack >= 0, "budget and slack are counts");
  return static_cast<std::int64_t>(count) > static_cast<std::int64_t>(budget) + slack;
}

/// The entries of one lane that survive: all, if the trigger does not fire; otherwise the forced ones and the best
/// max(0, budget - |forced|) of the others, ties to the lower ordinal.
inline selection select(row const& scores, flags const& forced, int budget, int slack = 0) {
  require(scores.size() == forced.size(), "one forced flag for every score");
  selection result;
  if (!fires(scores.size(), budget, slack)) {
    result.kept = every_ordinal(scores.size());
    return result;
  }
  std::vector<int> others;
  for (std::size_t j = 0; j < scores.size(); ++j) {
    if (forced[j]) {
      result.kept.push_back(static_cast<int>(j));
    } else {
      others.push_back(static_cast<int>(j));
      if (std::isnan(scores[j])) ++result.nan_candidates;
    }
  }
  std::sort(others.begin(), others.end(), [&](int a, int b) {
    double const score_a = scores[static_cast<std::size_t>(a)];
    double const score_b = scores[static_cast<std::size_t>(b)];
    if (outranks(score_a, score_b)) return true;
    if (outranks(score_b, score_a)) return false;
    return a < b;
  });
  result.forced_over_budget = std::max(0, count_of(forced) - budget);
  int const capacity = std::max(0, budget - count_of(forced));
  for (int rank = 0; rank < capacity && rank < static_cast<int>(others.size()); ++rank) {
    result.kept.push_back(others[static_cast<std::size_t>(rank)]);
  }
  std::sort(result.kept.begin(), result.kept.end());
  return result;
}

/// How many entries a lane keeps before the pool is shared: int(fraction * budget), of a product of doubles, which is a
/// little less than 29 for 0.29 * 100.
inline int lane_floor(double fraction, int budget_per_lane) { return static_cast<int>(fraction * budget_per_lane); }

/// A candidate of a pool, in the order in which the pool is filled.
struct pool_candidate {
  int tier;  ///< 0 forced, 1 within its lane's floor, 2 the rest
  double score;
  int lane;
  int ordinal;
};

inline bool comes_before(pool_candidate const& a, pool_candidate const& b) {
  if (a.tier != b.tier) return a.tier < b.tier;
  if (outranks(a.score, b.score)) return true;
  if (outranks(b.score, a.score)) return false;
  return std::tie(a.lane, a.ordinal) < std::tie(b.lane, b.ordinal);
}

/// The candidates of one lane with their tiers. Forced entries count inside the floor.
inline std::vector<pool_candidate> candidates_of(row const& scores, flags const& forced, int lane, int floor) {
  require(scores.size() == forced.size(), "one forced flag for every score");
  // A lane no longer than its floor is within it altogether.
  std::vector<int> const within = select(scores, forced, floor).kept;
  std::vector<pool_candidate> result;
  for (std::size_t j = 0; j < scores.size(); ++j) {
    int const ordinal = static_cast<int>(j);
    bool const in_floor = std::find(within.begin(), within.end(), ordinal) != within.end();
    result.push_back({forced[j] ? 0 : (in_floor ? 1 : 2), scores[j], lane, ordinal});
  }
  return result;
}

/// One budget over several lanes (AdaKV): every lane first keeps its best `floor` entries, the rest of the budget goes
/// to the best of what is left in any lane, ties to the lower (lane, ordinal).
///
/// The total is exact: max(|forced|, min(budget, entries)). If the floors do not fit beside the forced entries, the
/// candidates within a floor compete by score.
inline pooled_selection select_pooled(std::vector<row> const& scores, std::vector<flags> const& forced, int budget,
                                      int floor, int slack = 0) {
  require(scores.size() == forced.size(), "forced flags for every lane");
  std::vector<pool_candidate> pool;
  for (std::size_t lane = 0; lane < scores.size(); ++lane) {
    for (auto const& one : candidates_of(scores[lane], forced[lane], static_cast<int>(lane), floor))
      pool.push_back(one);
  }
  pooled_selection result;
  result.kept.resize(scores.size());
  int keep = static_cast<int>(pool.size());
  if (fires(pool.size(), budget, slack)) {
    int forced_total = 0;
    for (pool_candidate const& one : pool) {
      if (one.tier == 0) ++forced_total;
      if (one.tier != 0 && std::isnan(one.score)) ++result.nan_candidates;
    }
    result.forced_over_budget = std::max(0, forced_total - budget);
    keep = std::max(forced_total, budget);
  }
  std::sort(pool.begin(), pool.end(), comes_before);
  for (int rank = 0; rank < keep; ++rank) {
    pool_candidate const& one = pool[static_cast<std::size_t>(rank)];
    result.kept[static_cast<std::size_t>(one.lane)].push_back(one.ordinal);
  }
  for (std::vector<int>& lane : result.kept) std::sort(lane.begin(), lane.end());
  return result;
}

}  // namespace kvpolicy_reference
