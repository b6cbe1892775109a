// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>

#include "basics.hpp"

namespace kvpolicy_reference {

/// What an applier leaves of one lane that held `units.size() * unit_tokens` places or fewer.
struct layout_result {
  std::vector<int> ordinals;  ///< entries that are still there, by their old ordinals, ascending
  std::vector<int> units;     ///< the units that they live in, in order
  std::vector<int> freed;     ///< units that may be given to others, in the order in which they stood
};

/// Entry i moves to the lane's i-th place.
inline layout_result compacted(std::vector<int> const& list, int count, std::vector<int> const& kept) {
  layout_result after{kept, {}, {}};
  for (int i = 0; i < count; ++i) {
    (i < static_cast<int>(kept.size()) ? after.units : after.freed).push_back(list.at(static_cast<std::size_t>(i)));
  }
  return after;
}

/// No row moves; the list names the units of what is kept.
inline layout_result listed_only(std::vector<int> const& list, int count, std::vector<int> const& kept) {
  layout_result after{kept, {}, {}};
  for (int const ordinal : kept) after.units.push_back(list.at(static_cast<std::size_t>(ordinal)));
  for (int i = 0; i < count; ++i) {
    if (std::find(kept.begin(), kept.end(), i) == kept.end())
      after.freed.push_back(list.at(static_cast<std::size_t>(i)));
  }
  return after;
}

/// The lane goes on in its lowest units. Who stands in one of those stays; -1: who moves, into any of the holes.
inline layout_result overwritten(std::vector<int> const& list, int count, std::vector<int> const& kept) {
  std::vector<int> sorted(list.begin(), list.begin() + count);
  std::sort(sorted.begin(), sorted.end());
  layout_result after{kept, {}, {sorted.begin() + static_cast<std::ptrdiff_t>(kept.size()), sorted.end()}};
  std::set<int> const low(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(kept.size()));
  for (int const ordinal : kept) {
    int const unit = list.at(static_cast<std::size_t>(ordinal));
    after.units.push_back(low.count(unit) != 0 ? unit : -1);
  }
  return after;
}

/// A unit of `unit_tokens` entries goes when none of them is kept; what is kept includes drafts.
inline layout_result without_blocks(std::vector<int> const& table, int unit_tokens, int count,
                                    std::vector<int> const& kept) {
  layout_result after;
  for (int begin = 0; begin < count; begin += unit_tokens) {
    int const end = std::min(begin + unit_tokens, count);
    bool const stays = std::any_of(kept.begin(), kept.end(), [&](int e) { return e >= begin && e < end; });
    int const unit = table.at(static_cast<std::size_t>(begin / unit_tokens));
    (stays ? after.units : after.freed).push_back(unit);
    for (int e = begin; stays && e < end; ++e) after.ordinals.push_back(e);
  }
  return after;
}

/// Units whose mask elements an applier may write, and must: those of entries that go.
inline std::set<int> hidden_units(std::vector<int> const& list, int count, std::vector<int> const& kept) {
  layout_result const after = listed_only(list, count, kept);
  return {after.freed.begin(), after.freed.end()};
}

}  // namespace kvpolicy_reference
