// SPDX-License-Identifier: Apache-2.0
// The evictions that only the whole table has.
#include "../value_aware.hpp"
#include "engine.hpp"

namespace demo {

std::vector<contender> more_evictions() {
  using tinylm::when;
  return {
      contestant("knorm", when::after_prefill, [](int n) { return kv::policies::knorm({.budget = n, .sinks = 4}); }),
      contestant("random", when::after_prefill, [](int n) { return kv::policies::random({.budget = n, .sinks = 4}); }),
      contestant("value_aware", when::after_prefill,
                 [](int n) {
                   return kv::eviction{.score = value_aware{}, .protect = kv::recent{16}, .budget = kv::per_lane{n}};
                 }),
  };
}

}  // namespace demo
