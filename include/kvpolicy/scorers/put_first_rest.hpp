// SPDX-License-Identifier: Apache-2.0
// By what entries are ranked that a scorer does not put first.
#pragma once

#include <kvpolicy/scorers/random.hpp>

namespace KVPOLICY_NAMESPACE {

/// The score of an entry that is not put first: by recency, at random, or what a scorer has left in spare rows of the
/// plan. It may have left there, too, how many entries of each lane are put first at most.
struct put_first_rest {
  enum class kind { recency, random, rows };
  kind by = kind::recency;
  random_scores::uniform uniform{};
  by_lane<float> rows{};
  by_lane<float> counts{};
  KVPOLICY_HD float operator()(float old, entry at) const {
    if (by == kind::rows) return rows.row(at.lane)[at.ordinal];
    return by == kind::recency ? static_cast<float>(at.ordinal) : uniform(old, at);
  }
};

}  // namespace KVPOLICY_NAMESPACE
