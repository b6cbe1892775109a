// SPDX-License-Identifier: Apache-2.0
// TOVA on a whole model's lanes: one set a layer.
#include "policies/decide_apply.hpp"

namespace {

void tova(benchmark::State& state) {
  bench::whole_model_run(
      state, [](int budget) { return kvpolicy::policies::tova({.budget = budget}); }, {.reads_keys = true},
      [](auto const& cache, auto const& queries, kvpolicy::lane this_lane) {
        std::vector<bench::reference::lane_attention> layer;
        for (int head = 0; head < cache.lanes.heads; ++head)
          layer.push_back(bench::lane_of(cache, queries, {this_lane.sequence, this_lane.layer, head}));
        auto const scores = bench::reference::tova(layer, 1).scores;
        return bench::judged{scores, bench::nothing_forced(scores.size())};
      });
}
BENCHMARK(tova)->Apply(bench::whole_model_axes);

}  // namespace
