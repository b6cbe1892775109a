// SPDX-License-Identifier: Apache-2.0
// The evictions that only the whole table has.
#include "../value_aware.hpp"
#include "by_spec.hpp"

namespace demo {

std::vector<contender> more_evictions() {
  using tinylm::when;
  return {
      contestant("knorm", when::after_prefill, [](int n) { return kv::policies::knorm({.budget = n, .sinks = 4}); }),
      contestant("random", when::after_prefill, [](int n) { return kv::policies::random({.budget = n, .sinks = 4}); }),
      contestant("keydiff", when::after_prefill,
                 [](int n) {
                   return kv::eviction{.score = kv::keydiff{}, .protect = kv::sinks{4}, .budget = kv::per_lane{n}};
                 }),
      by_spec("chunk_kv", "chunk_kv(chunk=17, window=16, pool=none)"),  // a fact has 17 bytes
      contestant("r_kv", when::every_forward,
                 [](int n) {
                   return kv::eviction{.score = kv::r_kv{.window = 16, .pool = kv::max_pool{15}},
                                       .protect = kv::sinks{4},
                                       .budget = kv::per_lane{n},
                                       .trigger = kv::over_budget{31}};
                 }),
      contestant("lazy_eviction", when::every_forward,
                 [](int n) { return kv::eviction{.score = kv::lazy_eviction{}, .budget = kv::per_lane{n}}; }),
      contestant_by_profile("q_filters", when::after_prefill,
                            [](int n, query_profile const* known) {
                              kv::q_filters score;
                              if (known != nullptr) score.use_table(known->directions());
                              return kv::eviction{.score = score, .protect = kv::sinks{4}, .budget = kv::per_lane{n}};
                            }),
      contestant_by_profile("tri_attention", when::after_prefill,
                            [](int n, query_profile const* known) {
                              profiled_tri_attention score;
                              if (known != nullptr) score.profile = known->queries();
                              return kv::eviction{.score = score, .protect = kv::sinks{4}, .budget = kv::per_lane{n}};
                            }),
      by_spec("cake", "cake(window=16, pool=max:15)"),
      by_spec("critical_kv", "critical_kv(window=16, pool=max:15)"),
      by_spec("defensive_kv", "defensive_kv(window=16, pool=max:15)"),
      by_spec("expected_attention", "expected_attention(future=64)"),
      by_spec("expected_pooled", "expected_attention(future=64) | pooled(max:15)"),
      by_spec("kvzip", "kvzip"),
      by_spec("kvcompose", "kvcompose"),
      contestant("value_aware", when::after_prefill,
                 [](int n) {
                   return kv::eviction{.score = value_aware{}, .protect = kv::recent{16}, .budget = kv::per_lane{n}};
                 }),
  };
}

}  // namespace demo
