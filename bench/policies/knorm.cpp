// SPDX-License-Identifier: Apache-2.0
// Knorm on a whole model's lanes.
#include "policies/decide_apply.hpp"

namespace {

void knorm(benchmark::State& state) {
  bench::whole_model_run(
      state, [](int budget) { return kvpolicy::policies::knorm({.budget = budget}); }, {.reads_keys = true},
      [](auto const& cache, auto const& queries, kvpolicy::lane this_lane) {
        auto const scores = bench::reference::knorm_scores(bench::lane_of(cache, queries, this_lane).keys);
        return bench::judged{scores, bench::nothing_forced(scores.size())};
      });
}
BENCHMARK(knorm)->Apply(bench::whole_model_axes);

}  // namespace
