// SPDX-License-Identifier: Apache-2.0
// How many entries are put first in a decision of two steps.
#pragma once

#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE {

/// How many entries are put first: `tokens`, or the part `part` of the free places, rounded up; never more than the
/// free places, which the budget has besides forced entries. With `of_budget` it is a part of the whole budget, rounded
/// down but not to 0, and forced entries are among them. Then `sure` is the part of the average budget that a lane is
/// sure of, where lanes share one: as many are put first at least.
struct first_places {
  int tokens = 0;
  double part = 0;
  bool of_budget = false;
  double sure = 0;
  [[nodiscard]] KVPOLICY_HD constexpr int of(int budget, int forced, int average) const {
    int const free = budget > forced ? budget - forced : 0;
    int wanted = tokens;
    if (of_budget) {
      int const all = part_of_budget(part, budget), least = part_of_budget(sure, average);
      wanted = (all > least ? all : least) - forced;
    } else if (part > 0) {
      wanted = free - static_cast<int>((1 - part) * free + 1e-9);
    }
    return wanted < 0 ? 0 : wanted < free ? wanted : free;
  }
  [[nodiscard]] KVPOLICY_HD static constexpr int part_of_budget(double part, int budget) {
    int const all = static_cast<int>(part * budget);
    return part > 0 && all < 1 ? 1 : all;
  }
  friend bool operator==(first_places const&, first_places const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
