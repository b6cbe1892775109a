// SPDX-License-Identifier: Apache-2.0
// How many entries are put first in a decision of two steps.
#pragma once

#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE {

/// How many entries are put first: `tokens`, or the part `part` of the free places, rounded up; never more than the
/// free places, which the budget has besides forced entries.
struct first_places {
  int tokens = 0;
  double part = 0;
  [[nodiscard]] KVPOLICY_HD constexpr int of(int free) const {
    int const wanted = part > 0 ? free - static_cast<int>((1 - part) * free + 1e-9) : tokens;
    return wanted < free ? wanted : free;
  }
  friend bool operator==(first_places const&, first_places const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
