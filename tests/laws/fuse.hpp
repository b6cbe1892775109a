// SPDX-License-Identifier: Apache-2.0
// A policy whose functors throw where a test wants it.
#pragma once

#include "support/test.hpp"

namespace kvpolicy_test {

/// Which functor throws.
enum class part { none, protection, run, budget, floor, trigger, pick, forces, map, eviction };

/// What it throws: no standard exception.
struct blown {
  part by;
};

/// What the functors of a policy ask before they answer.
struct fuse {
  part by = part::none;
  kv::lane lane{};
  int ordinal = 0;
  int count = 0;  ///< of a trigger
  int share = 0;  ///< of a floor
  float score = 0;

  void ask(part asking, bool here) const {
    if (by == asking && here) throw blown{by};
  }
  void ask(part asking, kv::entry const& at) const { ask(asking, at.lane == lane && at.ordinal == ordinal); }
};

}  // namespace kvpolicy_test
