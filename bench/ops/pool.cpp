// SPDX-License-Identifier: Apache-2.0
// pool: scores of neighbours become one. Against a copy of the scores.
#include <kvpolicy/ops/pool.hpp>

#include "reference/pooling.hpp"
#include "scored_layer.hpp"

namespace {

namespace reference = kvpolicy_reference;

void pool(benchmark::State& state) {
  int const width = static_cast<int>(state.range(1));
  bool const is_max = state.range(2) != 0;
  bench::scored_layer on(static_cast<int>(state.range(0)));
  kvpolicy::pooling const by =
      is_max ? kvpolicy::pooling{kvpolicy::max_pool{width}} : kvpolicy::pooling{kvpolicy::avg_pool{width}};
  std::vector<float> const before = on.values;
  kvpolicy::ops::pool(on.exec, by, on.scores, 32);
  auto const entries = static_cast<std::ptrdiff_t>(state.range(0));
  auto const expected =
      reference::pooled({before.begin(), before.begin() + entries},
                        {is_max ? reference::pool_kind::maximum : reference::pool_kind::average, width}, 32);
  for (std::size_t e = 0; e < expected.size(); ++e) {
    if (std::abs(static_cast<double>(on.values[e]) - expected[e]) > 1e-5 * expected[e])
      return state.SkipWithError("wrong result");
  }
  for (auto _ : state) {
    state.PauseTiming();
    on.values = before;
    state.ResumeTiming();
    kvpolicy::ops::pool(on.exec, by, on.scores, 32);
  }
  bench::report_bytes(state, on.values.size() * sizeof(float));
}
BENCHMARK(pool)
    ->ArgNames({"entries", "width", "max"})
    ->ArgsProduct({{4096, 32768}, {7, 15}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
