// SPDX-License-Identifier: Apache-2.0
// What rules on a device force, and keep sets of both.
#pragma once

#include "support/device.hpp"
#include "support/test.hpp"

namespace kvpolicy_test {

/// Forces so many percent of all entries as if at random.
KVPOLICY_HD inline bool forces_percent(kv::entry const& at, int percent) {
  unsigned const mixed = static_cast<unsigned>(at.position * 31 + at.lane.head * 7 + at.lane.layer) * 2654435761u;
  return static_cast<int>((mixed >> 8) % 100u) < percent;
}

/// Forces the first and last entries instead, and knows the run between them.
template <class Rule>
struct between : Rule {
  int first = 0;
  int last = 0;
  KVPOLICY_HD bool forces(kv::entry at) const { return at.ordinal < first || at.ordinal >= at.count - last; }
  KVPOLICY_HD kv::ordinal_range candidates(kv::lane_entries const& of) const { return {first, of.count - last}; }
};

/// A keep set of what was there before.
inline void poison(kv::keep_set const& keep) {
  std::fill_n(keep.indices, keep.capacity, -7);
  std::fill_n(keep.indptr, keep.segments() + 1, -7);
  std::fill_n(keep.entry_count, keep.segments(), -7);
  *keep.report = {7, 7, 7, 7, 7};
}

inline bool same_keep(owned_keep& expected, owned_keep& found) {
  bool same = expected.report() == found.report() && found.view().indptr[0] == 0;
  for (int s = 0; s < found.view().segments(); ++s) {
    same = same && expected.view().indptr[s + 1] == found.view().indptr[s + 1];
    same = same && expected.view().entry_count[s] == found.view().entry_count[s] && expected.kept(s) == found.kept(s);
  }
  return same;
}

}  // namespace kvpolicy_test
