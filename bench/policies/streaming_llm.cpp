// SPDX-License-Identifier: Apache-2.0
// StreamingLLM on a whole model's lanes.
#include "policies/decide_apply.hpp"

namespace {

void streaming_llm(benchmark::State& state) {
  bench::whole_model_run(
      state, [](int budget) { return kvpolicy::policies::streaming_llm({.budget = budget}); }, {},
      [](auto const& cache, auto const&, kvpolicy::lane this_lane) {
        int const count = cache.lanes.committed(this_lane);
        auto const newest = bench::reference::every_ordinal(static_cast<std::size_t>(count));
        return bench::judged{{newest.begin(), newest.end()}, bench::reference::ends(count, 4, 0)};
      });
}
BENCHMARK(streaming_llm)->Apply(bench::whole_model_axes);

}  // namespace
