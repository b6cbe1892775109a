// expect: this scorer has no member `needs`, but a scorer says which signals it reads
// SPDX-License-Identifier: Apache-2.0
// A struct that does not say which signals it needs is no scorer.
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

struct nearly {
#ifndef KVPOLICY_MUST_FAIL
  using needs = kv::needs<>;
#endif
  static constexpr kv::granularity decides = kv::granularity::lane;
  void score(auto&, auto const&, kv::score_view const&) const {}
  friend bool operator==(nearly const&, nearly const&) = default;
};

void make(kv::host_executor& exec, kv::cache& cache) {
  [[maybe_unused]] auto plan = kv::make_plan(exec, kv::eviction{.score = nearly{}}, cache);
}
