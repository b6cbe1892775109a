// SPDX-License-Identifier: Apache-2.0
// H2O on a whole model's lanes: observe one row, decide, apply, as after every step.
#include "policies/decide_apply.hpp"
#include "reference/heavy_hitters.hpp"

namespace {

void h2o(benchmark::State& state) {
  bench::whole_model_run(
      state, [](int budget) { return kvpolicy::policies::h2o({.budget = budget}); },
      {.reads_keys = true, .observes = true},
      [](auto const& cache, auto const& queries, kvpolicy::lane this_lane) {
        auto const scores = bench::reference::h2o_mass(bench::lane_of(cache, queries, this_lane));
        int const count = cache.lanes.committed(this_lane);
        int const budget = count / 4;
        return bench::judged{scores, bench::reference::ends(count, 0, budget - budget / 2)};
      });
}
BENCHMARK(h2o)->Apply(bench::whole_model_axes);

}  // namespace
